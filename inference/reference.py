"""Writes ``golden.json``: what transformers and PEFT, not this worker, make of an adapter.

    python -m inference.reference --model DIR --adapter DIR --out golden.json

Needs the extras ``worker`` and ``train``. Runs on the CPU in float32, in a process of its own; reads safetensors only.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.errors import InferenceError
from inference.golden import MAX_FOLLOWING, Scores, default_prompts
from inference.model_store import fingerprint_of
from inference.prompt import PromptRenderer

if TYPE_CHECKING:
    import torch


def reference(model_dir: Path, adapter_dir: Path) -> dict[str, Any]:
    """The file's content for the default prompts.

    Raises :class:`~inference.errors.InferenceError` for a model store that cannot be read, and what transformers and
    PEFT raise for the rest.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    prompts = default_prompts(PromptRenderer.load(model_dir))
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, use_safetensors=True)
    model = PeftModel.from_pretrained(base, adapter_dir, torch_device="cpu")
    model.train(False)
    scored = []
    with torch.inference_mode():
        for ids in prompts:
            with_adapter = _scores(model(input_ids=torch.tensor([ids])).logits[0], ids)
            with model.disable_adapter():
                without = _scores(model(input_ids=torch.tensor([ids])).logits[0], ids)
            scored.append({"token_ids": ids, "adapter": with_adapter.json(), "base": without.json()})
    made_by = ", ".join(f"{name} {version(name)}" for name in ("peft", "transformers", "torch"))
    return {"base_fingerprint": fingerprint_of(model_dir), "made_by": made_by, "prompts": scored}


def _scores(logits: torch.Tensor, ids: list[int]) -> Scores:
    table = logits.double().log_softmax(dim=-1)
    best = table[-1].topk(min(MAX_FOLLOWING, table.shape[-1]))
    following = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    logprobs = (float(table[place, token]) for place, token in enumerate(ids[1:]))
    return Scores(tuple(round(value, 6) for value in logprobs), tuple((t, round(v, 6)) for t, v in following))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m inference.reference",
        description="Compute golden.json: log-probabilities of transformers + PEFT that the platform compares its own "
        "with before an adapter may answer.",
    )
    parser.add_argument("--model", type=Path, required=True, help="model store directory of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="directory of the PEFT adapter")
    parser.add_argument("--out", type=Path, required=True, help="where to write it")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    try:
        found = reference(options.model, options.adapter)
    except (InferenceError, OSError, ValueError, RuntimeError) as error:
        print(f"{type(error).__name__}: {str(error)[:500]}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
