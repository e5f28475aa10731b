from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tenants import keys, peppers
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = (
        "Which peppers stored keys need: a key goes over to the newest when it is used. One that no key needs can be "
        "taken out of LORAPLEX_KEY_PEPPERS. Fails when one that is needed is not configured."
    )
    example = "manage.py peppers"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "newest": keys.current_pepper(),
            "peppers": [asdict(pepper) for pepper in peppers.peppers()],
            "behind": peppers.behind(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for pepper in result["peppers"]:
            needed = pepper["keys"] + pepper["operator_keys"]
            note = "the newest" if pepper["version"] == result["newest"] else "still needed" if needed else "not needed"
            missing = "" if pepper["known"] else ", NOT CONFIGURED"
            lines.append(
                f"pepper {pepper['version']}: {pepper['keys']} keys, {pepper['operator_keys']} operator keys "
                f"({note}{missing})"
            )
        for key in result["behind"]:
            used = key["last_used_at"] or "never"
            lines.append(f"  {key['public_id']}  {key['tenant'] or 'operator'}  {key['name']}  last used {used}")
        return "\n".join(lines)

    def problem(self, result: dict[str, Any]) -> str | None:
        missing = [str(pepper["version"]) for pepper in result["peppers"] if not pepper["known"]]
        return f"LORAPLEX_KEY_PEPPERS lacks versions that keys need: {', '.join(missing)}." if missing else None
