"""Server time of every page of the console with a million requests, ten thousand adapters and a thousand tenants.

In a database of its own, filled by ``populate``. Each page is asked as an operator, at the platform, and as the owner
of the largest tenant, at that tenant: through all of Django, without a network.
Lists are also searched, for what is not there, and for what people type (:func:`typed`); files are read to their end.
One JSON object on the last line of stdout: the seconds of each repeat, by page and place.

    python tests/bench/console_pages.py --model DIR --folder DIR [--repeats N] [--requests N] …
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import os
import re
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import django
from processes import ROOT, own_settings

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.http import HttpResponse
    from django.test import Client

    from tenants.models import Tenant
    from tests.gateway.house import Actor, House


def everybody(options: argparse.Namespace) -> tuple[Actor, User, User]:
    """The largest tenant, with a key; an operator; and the tenant's owner."""
    from django.contrib.auth import get_user_model

    from gateway.population import populate
    from tenants.actors import Actor as Who
    from tenants.models import ApiKey
    from tests.gateway.house import Actor

    sizes = {"tenants": options.tenants, "adapters": options.adapters, "requests": options.requests}
    tenant = populate(Who("system", "bench"), **sizes)
    key, secret = ApiKey.issue(tenant)
    users = get_user_model().objects
    operator = users.create_user("bench", "bench@example.org", is_staff=True)
    owner = users.filter(memberships__tenant=tenant, memberships__role="owner").order_by("pk")[0]
    return Actor(tenant, key, secret.reveal()), operator, owner


def queries(answer: HttpResponse) -> list[str]:
    """What the page itself offers to ask it for: its search, its filters one at a time, and its links to itself."""
    if answer.streaming:
        return []
    text = answer.content.decode()
    found = ["q=nothing-such"] if 'name="q"' in text else []
    forms = "".join(re.findall(r'<form[^>]*method="get"[^>]*>(.*?)</form>', text, re.DOTALL))
    for name, options in re.findall(r'<select[^>]*name="([a-z_]+)"[^>]*>(.*?)</select>', forms, re.DOTALL):
        found += [f"{name}={quote(html.unescape(value))}" for value in re.findall(r'<option value="([^"]+)"', options)]
    links = re.findall(rf'href="(?:{re.escape(answer.request["PATH_INFO"])})?\?([^"#]+)"', text)
    found += [html.unescape(link) for link in links]
    return sorted(set(found))[:60]


def typed(tenant: Tenant) -> dict[str, list[str]]:
    """By page, what people type into its filters: names that hardly any or no request has, alone and together."""
    from django.db.models import Count

    from tenants.models import Adapter, ApiKey, BaseModel, InferenceRequest, Member

    adapters = Adapter.objects.filter(tenant=tenant).select_related("tenant").annotate(n=Count("versions__requests"))
    rare, usual = adapters.order_by("n", "pk")[0], adapters.order_by("-n", "pk")[0]
    keys = ApiKey.objects.filter(tenant=tenant).annotate(n=Count("requests"))
    member = Member.objects.filter(tenant=tenant, role="owner").order_by("pk")[0]
    alone = InferenceRequest.objects.unscoped().filter(adapter_version=None).values("base_model").distinct()
    words = {
        "model": [str(rare), str(usual), *BaseModel.objects.exclude(pk__in=alone).values_list("name", flat=True)[:1]],
        "key": [keys.order_by("-n", "pk")[0].public_id, keys.order_by("n", "pk")[0].public_id],
        "member": [str(member.public_id)],
        "since": ["2020-01-01T00:00"],
        "tenant": [tenant.slug],
        "state": ["failed"],
    }
    pairs = [
        f"{one}={quote(value)}&{other}={quote(with_it)}"
        for one, other in combinations(words, 2)
        for value in words[one]
        for with_it in words[other]
    ]
    single = [f"{name}={quote(value)}" for name, values in words.items() for value in values]
    years = [f"by={by}&period=year" for by in ("adapter", "key", "member")]
    files = [f"by={by}&each=day&format=csv" for by in ("adapter", "key")]
    return {"requests": single + pairs, "usage": years + files}


def length(answer: HttpResponse) -> int:
    """In bytes, read to its end."""
    if not answer.streaming:
        return len(answer.content)

    async def read() -> int:
        return sum([len(chunk) async for chunk in answer.streaming_content])

    return asyncio.run(read())


def timed(client: Client, address: str, repeats: int) -> list[float]:
    """Seconds of each repeat after one that warms up; none for a page that does not answer."""
    client.raise_request_exception = False
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        answer = client.get(address)
        length(answer)
        found.append(time.perf_counter() - began)
        if answer.status_code != 200:
            print(f"{address} answers {answer.status_code}", file=sys.stderr)
            return []
    return found[1:]


def measure(house: House, actor: Actor, operator: User, owner: User, repeats: int) -> dict[str, list[float]]:
    """Seconds by page and place."""
    from django.db import transaction

    from console.pages import At, pages
    from tests.console.people import client_of
    from tests.console.test_every_page import here, platform

    of_operator, of_owner = client_of(operator), client_of(owner)
    found, words = {}, typed(actor.tenant)
    for name, page in sorted(pages().items()):
        for at, client, address in ((At.PLATFORM, of_operator, platform), (At.TENANT, of_owner, here)):
            if at in page.at:
                with transaction.atomic():  # what the page is about is made for it, and goes again
                    place = f"{name}_{at.name}".lower()
                    url = address(page, house, actor)
                    found[place] = timed(client, url, repeats)
                    for query in dict.fromkeys([*queries(client.get(url)), *words.get(name, [])]):
                        found[f"{place}?{query}"] = timed(client, f"{url}?{query}", min(repeats, 3))
                    transaction.set_rollback(True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--adapters", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    environment = own_settings(options.folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(ROOT))
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from gateway.embedded.postgres import Postgres
    from tests.gateway.house import House

    database = Postgres(options.folder, options.folder / "postgres.log")
    database.start()
    try:
        call_command("migrate", verbosity=0)
        house = House(options.model)
        seconds = measure(house, *everybody(options), options.repeats)
        connection.close()
    finally:
        database.stop()
    broken = [name for name, repeats in seconds.items() if not repeats]
    if broken:
        raise SystemExit(f"no figures: {', '.join(broken)} did not answer")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
