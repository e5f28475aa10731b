"""A large, consistent platform out of nothing: to see how pages and commands do with a million requests.

Skewed as real ones are: the nth largest tenant has about 1/n of what the largest has, of everything. No key, password
or secret of it is known to anybody; of adapters there are rows and no files.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from django.db import connection, transaction
from django.utils import timezone

from tenants import audit, keys, rollups
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid
from tenants.models import BaseModel, Plan, Price, Tenant

STEPS = {
    "people": "tenants, members and keys",
    "adapters": "adapters, their versions and releases",
    "traffic": "requests and their ledger",
    "sums": "accounts",
    "events": "refusals, audit entries, webhooks, batches and workers",
}
"""The files beside this one, in order, and what each makes."""

MOST = {"tenants": 100_000, "adapters": 1_000_000, "requests": 50_000_000, "days": 365}


def populate(
    actor: Actor,
    *,
    tenants: int,
    adapters: int,
    requests: int,
    days: int = 30,
    say: Callable[[str], None] = lambda _: None,
) -> Tenant:
    """Fill a database without tenants, all or nothing. Returns the largest tenant.

    The base models and prices that are there are used; where there are none, two are made up, which no worker serves.

    :param days: the requests were admitted within so many days before now. :param say: told of each step.

    Raises :class:`~tenants.errors.Conflict` for a database with tenants, and :class:`~tenants.errors.Invalid`.
    """
    sizes = {"tenants": tenants, "adapters": adapters, "requests": requests, "days": days}
    for name, size in sizes.items():
        least = 0 if name in {"adapters", "requests"} else 1
        if not least <= size <= MOST[name]:
            raise Invalid(f"{name} has to be between {least} and {MOST[name]}.", name)
    with transaction.atomic():
        require_empty()
        _base(days)
        values = sizes | {"plan": Plan.standard().pk, "pepper": keys.current_pepper()}
        with connection.cursor() as cursor:
            for step, makes in STEPS.items():
                say(f"{makes} …")
                cursor.execute(Path(__file__).with_name(f"{step}.sql").read_text(), values)
        say("roll-ups …")
        rollups.rebuild()
        audit.record(actor, "database.populated", f"{tenants} tenants", tenant=None, after=sizes)
    if not connection.in_atomic_block:
        say("statistics …")
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE)")
    return Tenant.objects.order_by("created_at", "id")[0]


def require_empty() -> None:
    """Raises :class:`~tenants.errors.Conflict` for a database with tenants."""
    if Tenant.objects.exists():
        raise Conflict("This database has tenants already: only an empty one is filled.")


def _base(days: int) -> None:
    """At least one base model, each with a price that held all along."""
    if not BaseModel.objects.exists():
        for name, layers in (("imagined-1b", 16), ("imagined-8b", 32)):
            BaseModel.objects.create(
                name=name,
                fingerprint="0" * 64,
                directory="",
                context_length=8192,
                config={"model_type": "llama", "num_hidden_layers": layers, "hidden_size": 128 * layers},
            )
    since = timezone.now() - timedelta(days=days + 1)
    for model in BaseModel.objects.all():
        if not Price.objects.filter(base_model=model, plan=None, valid_from__lte=since).exists():
            Price.objects.create(base_model=model, input=150_000, cached_input=75_000, output=600_000, valid_from=since)
