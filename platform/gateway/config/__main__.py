"""``python -m gateway.config``: the table of docs/settings.md, from the registry."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.config.registry import SETTINGS, Setting


def row(setting: Setting) -> str:
    """One row of the table."""
    default = setting.default
    if default is None or default == ():
        shown = "—"
    elif isinstance(default, tuple):
        shown = f"`{','.join(default)}`"
    elif isinstance(default, bool):
        shown = f"`{str(default).lower()}`"
    else:
        assert not isinstance(default, Path)
        shown = f"`{default}`"
    return f"| `{setting.name}` | {shown} | {setting.meaning} |"


def table() -> str:
    return "\n".join(["| Setting | Default | Meaning |", "|---|---|---|", *(row(setting) for setting in SETTINGS)])


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
