"""The baselines, each in a process of its own so that its threads do not spin beside what is measured next.

    python tests/bench/reference.py TASK --model DIR --adapters DIR ...      one JSON value on the last line of stdout

``adapters``: write the eight random adapters. ``expect``: greedy tokens of each prompt alone, one adapter at a time,
with the margin between the two best logits. ``transformers``, ``peft``: seconds of each repeat of a static batch.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging
from workload import ADAPTERS, IN_FLIGHT, OUTPUT_TOKENS, RANK, adapter_name, check_prompts, encode, prompts

PAD = 0


def load(model_dir: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def write_adapters(model_dir: Path, out: Path) -> list[str]:
    """Random A and B, so that no shortcut for a zero adapter helps; rank 8 on every linear layer."""
    names = [f"a{index}" for index in range(ADAPTERS)]
    base = load(model_dir)
    for index, name in enumerate(names):
        torch.manual_seed(index)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=RANK,
            lora_alpha=2 * RANK,
            init_lora_weights=False,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        )
        model = get_peft_model(base, config)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "lora_B" in key:
                    weight.mul_(0.2)  # the text stays text-like, and the two best logits stay apart
        model.save_pretrained(out / name)
        edit_config(out / name / "adapter_config.json")
        base = model.unload()
    return names


def edit_config(path: Path) -> None:
    """The base's name, not this machine's path of it; every null key dropped."""
    config = {key: value for key, value in json.loads(path.read_text()).items() if value is not None}
    config["base_model_name_or_path"] = "HuggingFaceTB/SmolLM2-135M-Instruct"
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def with_adapters(model_dir: Path, adapters: Path) -> PeftModel:
    model = PeftModel.from_pretrained(load(model_dir), adapters / "a0", adapter_name="a0")
    for index in range(1, ADAPTERS):
        model.load_adapter(adapters / f"a{index}", adapter_name=f"a{index}")
    return model.eval()


def expect(model_dir: Path, adapters: Path, tokens: int) -> list[dict[str, Any]]:
    """Sixteen prompts, each alone: even rows with an adapter, odd ones with the base model only."""
    model = with_adapters(model_dir, adapters)
    rows = []
    for row, ids in enumerate(check_prompts(model_dir)):
        name = adapter_name(row // 2) if row % 2 == 0 else None
        batch = torch.tensor([ids])
        options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "output_logits": True}
        options |= {"return_dict_in_generate": True, "attention_mask": torch.ones_like(batch)}
        if name is None:
            with model.disable_adapter():
                out = model.generate(input_ids=batch, **options)
        else:
            model.set_adapter(name)
            out = model.generate(input_ids=batch, **options)
        best = torch.stack(out.logits)[:, 0].topk(2).values
        margins = (best[:, 0] - best[:, 1]).tolist()
        rows.append(
            {"adapter": name, "prompt": ids, "tokens": out.sequences[0, len(ids) :].tolist(), "margins": margins}
        )
    return rows


def time_batches(
    model: PreTrainedModel | PeftModel, model_dir: Path, repeats: int, tokens: int, mixed: bool
) -> list[float]:
    seconds = []
    for number in range(repeats + 1):
        batch = torch.tensor(encode(model_dir, prompts(model_dir, round_number=100 + number)))
        options: dict[str, Any] = {"adapter_names": [adapter_name(row) for row in range(IN_FLIGHT)]} if mixed else {}
        length = tokens if number else 4  # the first run only warms up
        started = time.perf_counter()
        out = model.generate(
            input_ids=batch, attention_mask=torch.ones_like(batch), max_new_tokens=length, do_sample=False, **options
        )
        seconds.append(time.perf_counter() - started)
        if out.shape[1] != batch.shape[1] + length:
            raise SystemExit("transformers stopped early; the figure would be wrong")
    return seconds[1:]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["adapters", "expect", "transformers", "peft"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=OUTPUT_TOKENS)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    result: object
    if options.task == "adapters":
        with torch.inference_mode(False):
            result = write_adapters(options.model, options.adapters)
    elif options.task == "expect":
        result = expect(options.model, options.adapters, options.tokens)
    else:
        mixed = options.task == "peft"
        model = with_adapters(options.model, options.adapters) if mixed else load(options.model)
        result = time_batches(model, options.model, options.repeats, options.tokens, mixed)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
