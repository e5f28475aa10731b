from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import intake
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand, find_base_model
from tenants.models import Activation, AdapterVersion


class Command(JsonCommand):
    help = (
        "Take in a PEFT LoRA adapter for a tenant: copy it, have it checked and tried, and serve it as <tenant>/<name>."
    )
    example = "manage.py add_adapter acme/pirate --path examples/adapters/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument(
            "--path", required=True, type=Path, help="directory with adapter_config.json and adapter_model.safetensors"
        )
        parser.add_argument("--model", help="base model; may be left out where the tenant may use only one")
        parser.add_argument("--no-wait", action="store_true", help="return once the check is queued")
        parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for it (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not options["path"].is_dir():
            raise CommandError(f"--path {options['path']} is no directory that can be read.")
        tenant, name = adapter_name(options)
        version = intake.receive(
            tenant=tenant,
            name=name,
            source=options["path"],
            base_model=find_base_model(options["model"]) if options["model"] else None,
        )
        if not options["no_wait"]:
            _wait(version, options["timeout"])
        if version.state == AdapterVersion.State.REJECTED:
            raise CommandError(f"{version} was rejected: {version.report.get('message')}")
        return {
            "adapter": str(version.adapter),
            "base_model": version.adapter.base_model.name,
            "version": version.number,
            "state": version.state,
            "digest": version.digest,
            "num_bytes": version.num_bytes,
            "max_rank": version.spec.get("max_rank"),
            "targets": len(version.spec.get("targets", ())),
            "trial": _trial(version),
        }

    def describe(self, result: dict[str, Any]) -> str:
        what = f"{result['adapter']} v{result['version']}"
        if result["state"] == AdapterVersion.State.PENDING:
            return f"{what} waits for its check."
        if result["state"] == AdapterVersion.State.CHECKED:
            return f"{what} is checked and waits for a worker to try it: {result['trial'] or 'none has yet'}"
        return f"{what} is ready: {result['targets']} modules, rank ≤ {result['max_rank']}, digest {result['digest']}."


def _trial(version: AdapterVersion) -> str | None:
    """What its trial found, or waits for."""
    found = Activation.objects.filter(tenant=version.adapter.tenant, version=version).first()
    return None if found is None else found.report.get("message")


def _wait(version: AdapterVersion, timeout: float) -> None:
    """Until it is ready, rejected, or no worker can try it now."""
    deadline = time.monotonic() + timeout
    while version.state in {AdapterVersion.State.PENDING, AdapterVersion.State.CHECKED}:
        if version.state == AdapterVersion.State.CHECKED and _trial(version) is not None:
            return
        if time.monotonic() > deadline:
            raise CommandError(f"{version} was not checked within {timeout:g} s; is a Celery worker running?")
        time.sleep(0.1)
        version.refresh_from_db()
