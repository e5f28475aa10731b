"""A stranger's prompt tells nothing by how it is served: whether somebody else has it cached changes no decision."""

from __future__ import annotations

import random

import pytest

from inference.core.shares import ShareRules
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner


def attack(seed: int, *, victim: str, known: bool, public: bool = False) -> tuple[object, ...]:
    """Serve the same traffic twice over; in the end somebody asks what ``victim`` asked, or what nobody did.

    :param public: both prompts begin with a declared prefix, which the victim has computed.
    :returns: all that the scheduler decided from then on, without the prompt's content.
    """
    rng = random.Random(seed)
    runner = FakeRunner(num_blocks=rng.choice([20, 32, 64]), eos=None, vocab_size=50)
    engine = Engine(runner, token_budget=rng.choice([8, 24]), max_running=4, shares=ShareRules(4))
    secret = [rng.randrange(50) for _ in range(rng.randrange(9, 30))]
    unknown = [50 + token for token in secret]  # nobody ever asks or generates these
    if public:
        system = [rng.randrange(50) for _ in range(10)]
        engine.declare("system", None, system)
        secret, unknown = [*system, *secret], [*system, *unknown]
    engine.add("secret", secret, 4, tenant=victim)
    for number in range(6):
        prompt = [rng.randrange(50) for _ in range(rng.randrange(1, 25))]
        engine.add(f"noise{number}", prompt, rng.randrange(1, 9), tenant=rng.choice("abv"))
    for _ in range(rng.randrange(15)):
        engine.step()
    while "secret" not in engine.done:
        engine.step()
    engine.trace.clear()
    asked = engine.add("attack", secret if known else unknown, 6, tenant="attacker")
    counts = []
    for number in range(60):
        if rng.random() < 0.3 and number < 30:
            prompt = [rng.randrange(50) for _ in range(rng.randrange(1, 25))]
            engine.add(f"later{number}", prompt, rng.randrange(1, 9), tenant=rng.choice("abv"))
        engine.step()
        pool = engine.scheduler.cache.pool
        shares = {name: (pool.shares.held(name), pool.shares.cached_of(name)) for name in ("a", "b", "v", "attacker")}
        counts.append((pool.free, pool.cached, pool.in_use, shares))
    engine.drain()
    computed = sum(length for step in engine.trace for name, _, length, _ in step if name == "attack")
    return engine.trace, counts, list(engine.done), engine.scheduler.preemptions, asked.cached_tokens, computed


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_strangers_cache_changes_no_decision(seed: int, public: bool) -> None:
    served = attack(seed, victim="v", known=True, public=public)
    assert served == attack(seed, victim="v", known=False, public=public)
    if public:
        assert served[-2] in (4, 8), "nothing of the declared prefix was found"


def test_the_own_cache_does() -> None:
    """The same comparison sees a difference where there is one."""
    differ = [
        attack(seed, victim="attacker", known=True) != attack(seed, victim="attacker", known=False)
        for seed in range(40)
    ]
    assert sum(differ) > 20
