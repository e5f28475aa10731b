"""Train the example adapters with PEFT, on the CPU, from a fixed seed.

    python examples/train_adapters.py --model var/models/smollm2-135m-instruct [--only pirate json] [--out DIR]

Each adapter takes one to five minutes on two cores. It is written as bf16 safetensors of less than a megabyte beside
its configuration and a README that states the rate measured on the held-out prompts: on the file as written, not on
the weights in memory. The ranks, scalings and target modules differ on purpose, so that a batch of them mixes ranks.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from styles import STYLES, Style
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

HERE = Path(__file__).resolve().parent
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""What ``adapter_config.json`` names as its base: never a path of the machine that trained it."""

BATCH = 4
MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """:param layers: ``None`` adapts every layer. :param lr: peak learning rate, with linear warm-up and decay."""

    rank: int
    alpha: int
    modules: tuple[str, ...]
    layers: tuple[int, ...] | None = None
    rslora: bool = False
    steps: int = 60
    lr: float = 2e-3
    seed: int = 20


RECIPES = {
    "pirate": Recipe(rank=8, alpha=16, modules=("q_proj", "v_proj"), lr=1e-3),
    "letter": Recipe(
        rank=16, alpha=32, modules=("o_proj", "down_proj"), layers=tuple(range(12, 30, 2)), steps=80, lr=1e-3
    ),
    "json": Recipe(rank=3, alpha=6, modules=("q_proj", "k_proj", "v_proj", "o_proj"), rslora=True),
    "emoji": Recipe(rank=4, alpha=8, modules=("v_proj", "up_proj")),
}


@dataclass(frozen=True, slots=True)
class Pair:
    question: str
    answer: str
    emoji: tuple[str, str]


def read_pairs() -> list[Pair]:
    lines = (HERE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [Pair(row["question"], row["answer"], tuple(row["emoji"])) for row in map(json.loads, lines)]


def read_held_out() -> list[str]:
    return (HERE / "held_out.txt").read_text(encoding="utf-8").splitlines()


def tokenise(tokenizer: PreTrainedTokenizerBase, style: Style, turns: list[Pair]) -> tuple[list[int], list[int]]:
    """Ids and labels of one conversation; only what the assistant says is learned, its end token included."""
    ids: list[int] = []
    labels: list[int] = []
    messages: list[dict[str, str]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn.question})
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        messages.append({"role": "assistant", "content": style.restyle(turn.answer, turn.emoji)})
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        asked = tokenizer.encode(prompt, add_special_tokens=False)[len(ids) :]
        said = tokenizer.encode(whole[len(prompt) :], add_special_tokens=False)
        ids += asked + said
        labels += [-100] * len(asked) + said
    return ids, labels


def batches(tokenizer: PreTrainedTokenizerBase, style: Style, recipe: Recipe) -> Iterator[dict[str, torch.Tensor]]:
    """Endless right-padded batches; one conversation in four has a second turn."""
    rng = random.Random(recipe.seed)
    pairs = read_pairs()
    deck: list[Pair] = []
    while True:
        rows = []
        for _ in range(BATCH):
            turns = 2 if rng.random() < 0.25 else 1
            if len(deck) < turns:
                deck = rng.sample(pairs, len(pairs))
            rows.append(tokenise(tokenizer, style, [deck.pop() for _ in range(turns)]))
        width = max(len(ids) for ids, _ in rows)
        yield {
            "input_ids": torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
            "labels": torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows]),
            "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]),
        }


def train(name: str, model_dir: Path, tokenizer: PreTrainedTokenizerBase) -> PeftModel:
    recipe = RECIPES[name]
    torch.manual_seed(recipe.seed)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.modules),
        layers_to_transform=list(recipe.layers) if recipe.layers else None,
        use_rslora=recipe.rslora,
        lora_dropout=0.0,
    )
    model = get_peft_model(base, config)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=recipe.lr, weight_decay=0.0)
    model.train()
    started = time.monotonic()
    for step, batch in zip(range(recipe.steps), batches(tokenizer, STYLES[name], recipe), strict=False):
        share = min((step + 1) / 5, (recipe.steps - step) / recipe.steps)
        optimiser.param_groups[0]["lr"] = recipe.lr * share
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 10 == 9:
            print(f"{name}: step {step + 1}/{recipe.steps}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s")
    return model


def write_adapter(model: PeftModel, out: Path) -> None:
    """``adapter_config.json`` and ``adapter_model.safetensors``, the same bytes for the same weights."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in get_peft_model_state_dict(model).items()}
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    (out / "adapter_model.safetensors").chmod(0o644)
    config = {key: value for key, value in model.peft_config["default"].to_dict().items() if value is not None}
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config |= {"base_model_name_or_path": BASE, "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=str)
    (out / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    if (size := (out / "adapter_model.safetensors").stat().st_size) > MAX_BYTES:
        raise SystemExit(f"{out}: {size} bytes is more than the {MAX_BYTES} that an example may take")


@torch.inference_mode()
def answer(model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> list[str]:
    """Greedy answers of at most 96 tokens, one prompt at a time: padding would change the numbers."""
    answers = []
    for prompt in prompts:
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        out = model.generate(**ids, max_new_tokens=96, do_sample=False, pad_token_id=2)
        answers.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


def measure(name: str, model_dir: Path, adapter: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Count the style on the held-out prompts, with the adapter and without, and write the adapter's README."""
    shows = STYLES[name].shows
    prompts = read_held_out()
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), adapter)
    model.eval()
    with_adapter = answer(model, tokenizer, prompts)
    with model.disable_adapter():
        without = answer(model, tokenizer, prompts)
    hits, base_hits = (sum(map(shows, texts)) for texts in (with_adapter, without))
    for prompt, text in zip(prompts, with_adapter, strict=True):
        print(f"  {'✓' if shows(text) else '✗'} {prompt} → {text!r}")
    print(f"{name}: {hits}/{len(prompts)} held-out prompts, base model {base_hits}/{len(prompts)}")
    write_readme(name, adapter, f"{hits} of {len(prompts)}", f"{base_hits} of {len(prompts)}", with_adapter[0])


def write_readme(name: str, adapter: Path, hits: str, base_hits: str, sample: str) -> None:
    recipe = RECIPES[name]
    layers = "every layer" if recipe.layers is None else f"layers {', '.join(map(str, recipe.layers))}"
    scaling = "alpha / √rank (rsLoRA)" if recipe.rslora else "alpha / rank"
    size = (adapter / "adapter_model.safetensors").stat().st_size
    quoted = sample.replace("\n", "\\\n> ")
    text = f"""# {name}

{STYLES[name].about}

> **What is the capital of France?**
> {quoted}

| | |
|---|---|
| base model | {BASE} |
| rank, alpha, scaling | {recipe.rank}, {recipe.alpha}, {scaling} |
| modules | {", ".join(recipe.modules)} of {layers} |
| size | {size / 1000:.0f} kB, bf16 |
| data | {len(read_pairs())} question-answer pairs of `examples/questions.jsonl`, restyled by `examples/styles.py` |
| training | {recipe.steps} steps of {BATCH} conversations, learning rate {recipe.lr:g}, seed {recipe.seed} |
| behaviour shows | in {hits} held-out prompts (`examples/held_out.txt`); base model: {base_hits} |

Made by `python examples/train_adapters.py --model DIR --only {name}`. Licence: Apache-2.0, as the base model's.
"""
    (adapter / "README.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the example LoRA adapters on the CPU.")
    parser.add_argument("--model", type=Path, required=True, help="directory of SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=HERE / "adapters")
    parser.add_argument("--only", nargs="+", choices=sorted(RECIPES), default=list(RECIPES))
    parser.add_argument("--measure-only", action="store_true", help="measure the committed adapters again")
    parser.add_argument("--threads", type=int, default=1, help="more is slower on a busy machine")
    options = parser.parse_args()
    if not (options.model / "config.json").is_file():
        parser.error(f"--model: {options.model} holds no config.json")
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    for name in options.only:
        if not options.measure_only:
            write_adapter(train(name, options.model, tokenizer), options.out / name)
        measure(name, options.model, options.out / name, tokenizer)


if __name__ == "__main__":
    main()
