"""The script that made the example adapters: its data, its recognisers, a real training step, and what it made."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["pirate", "letter", "json", "emoji"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("train_adapters")


def test_held_out_prompts_are_not_in_the_data(script: ModuleType) -> None:
    held_out = script.read_held_out()
    assert len(held_out) >= 8
    assert not {pair.question for pair in script.read_pairs()} & set(held_out)


@pytest.mark.parametrize("name", NAMES)
def test_a_recogniser_knows_its_own_style_and_no_other(script: ModuleType, name: str) -> None:
    style = script.STYLES[name]
    for pair in script.read_pairs():
        assert style.shows(style.restyle(pair.answer, pair.emoji)), pair
        assert not style.shows(pair.answer), pair
        for other in set(NAMES) - {name}:
            assert not style.shows(script.STYLES[other].restyle(pair.answer, pair.emoji)), (other, pair)


def test_only_what_the_assistant_says_is_learned(script: ModuleType, smollm_dir: Path) -> None:
    tokenizer = script.AutoTokenizer.from_pretrained(smollm_dir)
    pairs = script.read_pairs()[:2]
    ids, labels = script.tokenise(tokenizer, script.STYLES["pirate"], pairs)
    learned = tokenizer.decode([token for token, label in zip(ids, labels, strict=True) if label != -100])
    said = [script.STYLES["pirate"].restyle(pair.answer, pair.emoji) for pair in pairs]
    assert learned == "".join(f"{text}<|im_end|>\n" for text in said)
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))


@pytest.mark.slow
def test_one_step_writes_a_loadable_adapter(
    script: ModuleType, smollm_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = script.Recipe(rank=2, alpha=4, modules=("q_proj", "v_proj"), layers=(28, 29), steps=2)
    monkeypatch.setitem(script.RECIPES, "pirate", recipe)
    tokenizer = script.AutoTokenizer.from_pretrained(smollm_dir)
    for run in ("first", "second"):
        script.write_adapter(script.train("pirate", smollm_dir, tokenizer), tmp_path / run)
    first, second = ((tmp_path / run / "adapter_model.safetensors").read_bytes() for run in ("first", "second"))
    assert first == second, "the same seed has to give the same adapter"
    config = json.loads((tmp_path / "first" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert str(smollm_dir) not in json.dumps(config)
    base = script.AutoModelForCausalLM.from_pretrained(smollm_dir)
    model = script.PeftModel.from_pretrained(base, tmp_path / "first")
    assert any(weight.abs().sum() > 0 for key, weight in model.named_parameters() if "lora_B" in key)


@pytest.mark.slow
def test_the_committed_adapters_behave(script: ModuleType, smollm_dir: Path) -> None:
    """Three prompts that no adapter was trained on, through PEFT: the style shows with the adapter, never without."""
    prompts = script.read_held_out()[:3]
    tokenizer = script.AutoTokenizer.from_pretrained(smollm_dir)
    base = script.AutoModelForCausalLM.from_pretrained(smollm_dir)
    model = script.PeftModel.from_pretrained(base, EXAMPLES / "adapters" / NAMES[0], adapter_name=NAMES[0])
    for name in NAMES[1:]:
        model.load_adapter(EXAMPLES / "adapters" / name, adapter_name=name)
    model.eval()
    with model.disable_adapter():
        plain = script.answer(model, tokenizer, prompts)
    for name in NAMES:
        model.set_adapter(name)
        answers = script.answer(model, tokenizer, prompts)
        shows = script.STYLES[name].shows
        assert all(map(shows, answers)), (name, answers)
        assert not any(map(shows, plain)), (name, plain)
