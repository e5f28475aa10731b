"""What the commands about releases have in common."""

from __future__ import annotations

from typing import Any

from tenants.models import Release


def shown_release(release: Release) -> dict[str, Any]:
    return {
        "adapter": str(release.adapter),
        "release": release.number,
        "kind": release.kind,
        "version": release.version.number,
        "canary": release.canary.number if release.canary else None,
        "canary_percent": release.canary_percent,
        "made_by": release.made_by,
        "made_at": release.made_at.isoformat(),
    }


def describe_release(result: dict[str, Any]) -> str:
    split = f", {result['canary_percent']} % v{result['canary']}" if result["canary"] else ""
    return f"{result['adapter']} stands for v{result['version']}{split} (release {result['release']})."
