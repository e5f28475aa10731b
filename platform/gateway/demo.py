"""Seeds the demo: two tenants, each with a key and its own example adapters. Safe to run again."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import CommandError

from gateway.demo_snippets import snippets
from gateway.installation import quiet
from inference.adapter_format import content_digest
from inference.fetch_model import DEFAULT_NAME
from tenants.access import authenticate
from tenants.db import open_pool
from tenants.errors import TenantsError
from tenants.models import Adapter, Price, Tenant

ADMIN = "admin"
TENANTS = {
    "acme": ("Acme Ltd", ("pirate", "emoji")),
    "globex": ("Globex Corporation", ("json", "letter")),
}
PRICE = ("--input", "150000", "--cached-input", "75000", "--output", "600000")
"""0.15, 0.075 and 0.60 for a million tokens: something to see in bills."""


@dataclass(frozen=True, slots=True)
class DemoTenant:
    name: str
    api_key: str = field(repr=False)
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Demo:
    base_model: str
    admin_password: str = field(repr=False)
    tenants: tuple[DemoTenant, ...]


def seed(base_model: str) -> Demo:
    """Make what is missing, and keep what an earlier run made: its keys are read back from ``demo.json``."""
    earlier = _earlier()
    password = _admin_password(earlier.get("admin", {}).get("password"))
    keys = {tenant["name"]: tenant["api_key"] for tenant in earlier.get("tenants", ())}
    if not Price.objects.filter(base_model__name=base_model).exists():
        quiet("set_price", base_model, *PRICE)
    tenants = []
    for slug, (display_name, adapters) in TENANTS.items():
        if not Tenant.objects.filter(slug=slug).exists():
            quiet("create_tenant", slug, "--display-name", display_name, "--no-models")
        quiet("allow_model", "--tenant", slug, "--model", base_model)
        # The examples are trained for one base; another base would refuse their shapes.
        ready = tuple(_adapter(slug, name, base_model) for name in adapters) if base_model == DEFAULT_NAME else ()
        tenants.append(DemoTenant(slug, _api_key(slug, keys.get(slug)), ready))
    return Demo(base_model, password, tuple(tenants))


def write(demo: Demo, url: str) -> Path:
    """Write ``demo.json`` (mode 0600) and return its path."""
    path: Path = settings.DATA_DIR / "demo.json"
    document = {
        "url": url,
        "ws_url": f"ws{url.removeprefix('http')}/v1/ws",
        "admin": {"user": ADMIN, "password": demo.admin_password},
        "base_model": demo.base_model,
        "tenants": [
            {"name": tenant.name, "api_key": tenant.api_key, "adapters": list(tenant.adapters)}
            for tenant in demo.tenants
        ],
    }
    draft = path.with_name(f".demo.json.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(document, file, indent=2)
    draft.replace(path)
    return path


def describe(demo: Demo, url: str, path: Path) -> str:
    """What ``up --demo`` prints once everything is ready."""
    lines = ["", f"loraplex serves at {url}", ""]
    for tenant in demo.tenants:
        adapters = ", ".join(tenant.adapters) or "the base model only: the examples fit SmolLM2-135M-Instruct"
        lines.append(f"  {tenant.name:<8} {tenant.api_key}   {adapters}")
    first = demo.tenants[0]
    model = first.adapters[0] if first.adapters else demo.base_model
    lines += ["", f"  console: {url}/console/ as {ADMIN}, password {demo.admin_password}"]
    lines += [f"  chat with one of the keys above: {url}/chat", f"  all of it: {path}"]
    for title, text in snippets(url, first.api_key, model).items():
        lines += ["", f"# {title}", text]
    return "\n".join([*lines, "", "Ctrl-C stops everything."])


def examples_dir() -> Path:
    """In a checkout ``examples/adapters``; the wheel carries the same folders inside this package."""
    packaged = Path(__file__).with_name("example_adapters")
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "examples" / "adapters"


def _earlier() -> dict[str, Any]:
    try:
        found = json.loads((settings.DATA_DIR / "demo.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _admin_password(earlier: str | None) -> str:
    users = get_user_model().objects
    admin = users.filter(username=ADMIN).first()
    if admin is None:
        password = earlier or secrets.token_urlsafe(12)
        users.create_superuser(ADMIN, "", password)
        return password
    if earlier is not None and admin.check_password(earlier):
        return earlier
    password = secrets.token_urlsafe(12)
    admin.set_password(password)
    admin.save(update_fields=["password"])
    return password


def _api_key(slug: str, earlier: str | None) -> str:
    if earlier is not None and asyncio.run(_still_good(slug, earlier)):
        return earlier
    key = json.loads(quiet("issue_key", slug, "--name", "demo", "--json"))["api_key"]
    return str(key)


async def _still_good(slug: str, api_key: str) -> bool:
    async with open_pool(min_size=1, max_size=1) as pool:
        try:
            return (await authenticate(pool, api_key)).tenant == slug
        except TenantsError:
            return False


def _adapter(slug: str, name: str, base_model: str) -> str:
    """Take the example in, unless this very content is what the name stands for already. Returns its model id."""
    directory = examples_dir() / name
    if not directory.is_dir():
        raise CommandError(f"The example adapter {directory} is missing.")
    adapter = Adapter.objects.filter(tenant__slug=slug, name=name).select_related("current").first()
    if adapter is None or adapter.current is None or adapter.current.digest != content_digest(directory):
        quiet("add_adapter", "--tenant", slug, "--name", name, "--path", str(directory), "--model", base_model)
    return f"{slug}/{name}"
