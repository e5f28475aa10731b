from __future__ import annotations

from pathlib import Path

import pytest

from tenants.models import Tenant
from tests.gateway.house import House


@pytest.fixture
def house(transactional_db: None, tiny_model_dir: Path) -> House:
    """No worker yet."""
    return House(tiny_model_dir)


@pytest.fixture
def tenant(house: House) -> Tenant:
    return house.actor("acme").tenant
