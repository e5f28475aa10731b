"""What is set for the whole process before a model is loaded."""

from __future__ import annotations

import torch


def settle(place: torch.device, threads: int | None) -> None:
    """:param place: where the model computes. :param threads: of one operation of torch; ``None`` leaves its choice."""
    if threads is not None:
        torch.set_num_threads(threads)
    # float32 is float32: NVIDIA's containers have torch multiply with 10 bits of it (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE).
    torch.set_float32_matmul_precision("highest")
    # cuBLAS may cut K into parts; by torch's default it may also round each part's sum to 16 bits.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if place.type == "cuda":
        torch.cuda.set_device(place)  # where Triton's kernels are launched
