"""What the sources of compiled loops may not contain; no test of what they compute would notice it reliably."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
# In a loop an array would be freed after its last use by name, and there is nobody to tell that there is no memory.
ALLOCATES = {"array", "arange", "concatenate", "copy", "empty", "full", "ones", "tolist", "zeros"}
ALLOCATES |= {f"{name}_like" for name in ALLOCATES} | {"bytearray", "dict", "list", "set"}


def bodies(source: str) -> list[ast.FunctionDef]:
    """Functions that numba compiles: decorated with ``njit``, or given to ``Kernel``."""
    tree = ast.parse(source)
    given = {
        call.args[0].id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "Kernel"
        and call.args
        and isinstance(call.args[0], ast.Name)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (node.name in given or any("njit" in ast.unparse(decorator) for decorator in node.decorator_list))
    ]


def allocations(body: ast.FunctionDef) -> list[str]:
    found = []
    for node in (node for statement in body.body for node in ast.walk(statement)):
        if isinstance(node, ast.Attribute) and node.attr in {"ctypes", "data"}:
            found.append(node)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ALLOCATES:
                found.append(node)
        elif isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
            found.append(node)
    return [f"{body.name}, line {node.lineno}: {ast.unparse(node)}" for node in found]


SOURCES = [
    path
    for folder in ("kernels", "inference")
    for path in sorted((PROJECT / folder).rglob("*.py"))
    if bodies(path.read_text())
]


def test_the_loops_are_found() -> None:
    names = {body.name for path in SOURCES for body in bodies(path.read_text())}
    assert {"_attend", "_store", "_multiply", "_sgmv", "_rms_norm", "_choose", "_lead", "own_place"} <= names


def test_what_is_looked_for_is_found() -> None:
    (body,) = bodies(
        "def f(a):\n    s = np.empty(3)\n    return s.ctypes.data\nF = Kernel(f)\ndef g():\n    return []\n"
    )
    assert [place.split(": ")[1] for place in allocations(body)] == ["np.empty(3)", "s.ctypes.data", "s.ctypes"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_nothing_is_allocated_in_a_loop(path: Path) -> None:
    assert [line for body in bodies(path.read_text()) for line in allocations(body)] == []
