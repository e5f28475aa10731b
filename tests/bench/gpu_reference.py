"""transformers and PEFT on the same weights: what the engine's tokens are held against, and its times."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from gpu_engine import Answer, Load
from peft import PeftModel
from random_model import RandomModel
from transformers import AutoModelForCausalLM
from transformers.utils import logging

TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.25}
"""How far below the best logit a token's may lie, in standard deviations of all logits: two implementations round
differently. A token of a wrong adapter's, or of a wrong position's, lies about four below it.
"""


class Reference:
    """:param adapters: how many to load."""

    def __init__(self, model: RandomModel, adapters: int, device: torch.device) -> None:
        warnings.filterwarnings("ignore")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._model, self._device = model, device
        base = AutoModelForCausalLM.from_pretrained(model.base, dtype=model.dtype).to(device).eval()
        base.generation_config.eos_token_id, base.generation_config.pad_token_id = None, 0
        # PEFT would load adapters of 16 bits as float32 otherwise, and multiply by those.
        options = {"autocast_adapter_dtype": False}
        self._peft = PeftModel.from_pretrained(base, model.adapter(0), adapter_name="a0", **options)
        for index in range(1, adapters):
            self._peft.load_adapter(model.adapter(index), adapter_name=f"a{index}", **options)
        self._peft.eval()

    @torch.inference_mode()
    def check(self, answers: Sequence[Answer]) -> float:
        """The farthest that a token lies below the best, see :data:`TOLERANCE`. ``SystemExit`` where it is too far."""
        tolerance, farthest = TOLERANCE[self._model.dtype], 0.0
        for row, answer in enumerate(answers):
            known = torch.tensor([answer.prompt + answer.tokens[:-1]], device=self._device)
            with self._only(answer.adapter):
                logits = self._peft(input_ids=known).logits[0, len(answer.prompt) - 1 :].float()
            chosen = logits.gather(1, torch.tensor(answer.tokens, device=self._device)[:, None])[:, 0]
            gaps = (logits.amax(1) - chosen) / logits.std(1)
            farthest = max(farthest, float(gaps.max()))
            if not farthest <= tolerance:
                raise SystemExit(
                    f"not what transformers and PEFT compute, so no figures: row {row} (adapter {answer.adapter}), "
                    f"token {int(gaps.argmax())}: {farthest:.3g} standard deviations below the best logit, at most "
                    f"{tolerance} are rounding"
                )
        return farthest

    @torch.inference_mode()
    def decode(self, load: Load, adapters: int) -> list[float]:
        """Milliseconds of a step of all sequences, for each repeat: those of a run less those of its prefill.

        :param adapters: distinct ones; 0: none. :raises torch.OutOfMemoryError: it does not fit.
        """
        generator = torch.Generator().manual_seed(0)
        shape = (load.sequences, load.context)
        batch = torch.randint(3, self._model.config.vocab_size, shape, generator=generator).to(self._device)
        names = [f"a{row % adapters}" for row in range(load.sequences)] if adapters else None
        times = []
        for _ in range(load.repeats + 1):
            first = self._generate(batch, 1, names)
            times.append(1000 * (self._generate(batch, 1 + load.steps, names) - first) / load.steps)
        return times[1:]

    def _generate(self, batch: torch.Tensor, tokens: int, names: list[str] | None) -> float:
        options = {"adapter_names": names} if names else {}
        with nullcontext() if names else self._peft.disable_adapter():
            started = time.perf_counter()
            out = self._peft.generate(
                input_ids=batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=tokens,
                do_sample=False,
                **options,
            )
            out.cpu()  # waits for the device
            seconds = time.perf_counter() - started
        if out.shape[1] != batch.shape[1] + tokens:
            raise SystemExit("transformers stopped early; the figure would be wrong")
        return seconds

    def _only(self, adapter: int | None) -> object:
        if adapter is None:
            return self._peft.disable_adapter()
        self._peft.set_adapter(f"a{adapter}")
        return nullcontext()
