from __future__ import annotations

from typing import Any

from fleet import live
from fleet.models import Worker
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "List the workers and ask each how it is now: requests, queue, cache, adapters on the device, version."
    example = "manage.py workers"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        workers = list(Worker.objects.select_related("base_model").order_by("name"))
        found = live.ask(workers)
        return {"workers": [live.described(worker, found[worker.name]) for worker in workers]}

    def describe(self, result: dict[str, Any]) -> str:
        if not result["workers"]:
            return "No worker is registered (register_worker)."
        lines = [f"{'worker':<20} {'state':<9} {'running':>7} {'waiting':>7} {'KV':>5} {'adapters':>9}  address"]
        for row in result["workers"]:
            load = row["load"] or {"running": "", "waiting": "", "kv_usage": None, "resident": (), "slots": ""}
            cache = "" if load["kv_usage"] is None else f"{load['kv_usage']:.0%}"
            adapters = f"{len(load['resident'])}/{load['slots']}"
            lines.append(
                f"{row['name']:<20} {row['state']:<9} {load['running']:>7} {load['waiting']:>7} {cache:>5}"
                f" {adapters:>9}  {row['url']}"
            )
            if row["problem"]:
                lines.append(f"  does not serve: {row['problem']}")
        return "\n".join(lines)
