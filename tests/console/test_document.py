from __future__ import annotations

import re
from pathlib import Path

from console.navigation import TITLES

DOCUMENT = Path(__file__).parents[2] / "docs" / "console.md"


def test_the_document_names_the_menu_s_screens() -> None:
    rows = re.findall(r"^\| ([A-Z][^|]*?) \|", DOCUMENT.read_text(), re.MULTILINE)
    named = [title for row in rows if row != "Screen" for title in row.split(", ")]
    assert sorted(named) == sorted(TITLES.values())
