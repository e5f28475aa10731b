"""The shape of the tree: what may not exist, and that the rules which look automatic are really kept."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = ("inference", "tenants", "platform", "kernels")
MOST_LINES = 400


def _run(code):
    return _command(sys.executable, "-c", code)


def _command(*command):
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)


def test_import_platform_is_the_standard_librarys():
    done = _run("import platform; print(platform.__file__); platform.system()")
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith(str(PROJECT))


@pytest.mark.slow
def test_import_peft_works_from_the_root():
    done = _run("import peft, transformers; print(peft.__version__)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["platform", "kernels"])
def test_source_roots_are_no_packages(folder):
    assert not (PROJECT / folder / "__init__.py").exists()


def test_no_package_under_tests():
    assert list((PROJECT / "tests").rglob("__init__.py")) == []


def test_every_source_folder_is_a_package():
    folders = {path.parent for root in SOURCES for path in (PROJECT / root).rglob("*.py")}
    bare = [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert bare == []


def test_files_stay_readable():
    sources = [path for root in SOURCES for path in (PROJECT / root).rglob("*.py") if "migrations" not in path.parts]
    long = {
        str(path.relative_to(PROJECT)): count
        for path in sources
        if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def test_dependency_rules_are_kept():
    done = _command(str(Path(sys.executable).with_name("lint-imports")))
    assert done.returncode == 0, done.stdout


def test_the_control_plane_loads_without_torch():
    done = _run(
        "import sys, django; import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'gateway.settings'; django.setup();"
        "import gateway.asgi; print([m for m in ('torch', 'triton', 'transformers', 'peft') if m in sys.modules])"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_readmes_commands_exist():
    readme, makefile = (PROJECT / "README.md").read_text(), (PROJECT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", readme))
    assert {"demo", "test", "check", "bench"} <= targets
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.M)} == set()
    commands = set(re.findall(r"manage\.py ([a-z_]+)", readme))
    assert {"up", "doctor", "create_tenant"} <= commands
    for command in commands - {"migrate"}:
        assert list(PROJECT.glob(f"*/**/management/commands/{command}.py")), command


def test_the_readmes_files_exist():
    readme = (PROJECT / "README.md").read_text()
    named = set(re.findall(r"`((?:platform|tenants|inference|kernels|templates|examples|docs)/[\w./-]+)`", readme))
    named |= set(re.findall(r"\]\((docs/[\w./-]+)\)", readme))
    assert {name for name in named if not (PROJECT / name).exists()} == set()
    assert len(named) >= 8
