from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from fleet import trial
from tenants import intake
from tests.conftest import WorkerProcess
from tests.gateway.conftest import _orm_beside_a_loop, gateway
from tests.gateway.house import Actor, House

__all__ = ["_orm_beside_a_loop", "gateway"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "adapters"


def _try(version_id: int) -> None:
    try:
        trial.run(version_id)
    finally:
        connection.close()


class RealHouse(House):
    """A house whose worker is a real one, with adapters taken in as an operator does it."""

    def add(self, actor: Actor, name: str) -> str:
        """An example adapter, checked and in the store; returns the id under which it is called."""
        version = intake.receive(tenant=actor.tenant, name=name, source=EXAMPLES / name, base_model=self.base)
        intake.check(version.pk)  # what the Celery tasks do
        with ThreadPoolExecutor(1) as thread:  # tests with a loop of their own come here too
            thread.submit(_try, version.pk).result()
        version.refresh_from_db()
        assert version.state == "ready", version.report
        return f"{actor.tenant.slug}/{name}"


@pytest.fixture
def house(transactional_db: None, worker: WorkerProcess) -> RealHouse:
    house = RealHouse(worker.model_dir)
    house.worker(worker.url, "real")
    return house


@pytest.fixture
def acme(house: RealHouse) -> Actor:
    return house.actor("acme")


@pytest.fixture
def globex(house: RealHouse) -> Actor:
    return house.actor("globex")
