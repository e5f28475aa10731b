"""Models and workers: what operators and members see of them, and what operators do to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.async_api import Page, expect
from uuid6 import uuid7

from fleet.dialects.report import Report
from fleet.models import Worker, WorkerSample
from fleet.samples import _stored
from tenants import pricing
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import Adapter, AdapterVersion, AuditEntry, BaseModel, Plan
from tests.console.conftest import shoot
from tests.console.opened import opened
from tests.console.people import client_of, member, operator, sign_in
from tests.gateway.answering import answering
from tests.gateway.api import ledger
from tests.gateway.house import House, Process

DIGEST = "a" * 64
OTHERS = "b" * 64
NOBODYS = "c" * 64


def sampled(worker: Worker, *resident: str, problem: str = "", **figures: Any) -> None:
    report = Report(running=3, waiting=2, kv_usage=0.25, slots=8, resident=resident, version="1.2.3", **figures)
    WorkerSample.objects.create(
        worker=worker, at=timezone.now(), problem=problem, report={} if problem else _stored(report)
    )


def text(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()
    return " ".join(answer.content.decode().split())


def test_an_operator_sees_workers_models_and_what_lies_where(house: House) -> None:
    acme = house.actor("acme")
    house.adapter(acme, "pirate", DIGEST)
    w1, w2 = house.worker("http://127.0.0.1:9", "w1"), house.worker("http://127.0.0.1:10", "w2")
    sampled(w1, DIGEST, NOBODYS, weights="int8")
    sampled(w2, problem="no answer <here>")
    client = client_of(operator())
    page = text(client.get("/console/workers"))
    assert "1.2.3" in page
    assert "25.0 %" in page
    assert "2 of 8" in page
    assert "no answer &lt;here&gt;" in page
    assert "1 of 2 workers" in page
    assert "acme/pirate" in page
    assert "data-dialog>Retire" in page
    assert "No adapter is loaded" not in page
    assert "acme/pirate" in text(client.get("/console/workers", {"q": "acme/pir"}))
    assert "acme/pirate" in text(client.get("/console/workers", {"q": "pir"}))
    assert "No adapter that matches" in text(client.get("/console/workers", {"q": "acme/x\0y"}))
    own = text(client.get("/console/workers/named/w1"))
    assert "acme/pirate" in own
    assert "loaded by hand" in own
    assert "int8" in own
    assert "It serves nothing: no answer &lt;here&gt;" in text(client.get("/console/workers/named/w2"))


def test_with_nothing_there_it_says_what_to_do(db: None) -> None:
    client = client_of(operator())
    page = text(client.get("/console/workers"))
    assert "No worker is registered" in page
    assert "No base model is registered" in page
    assert "none is registered yet" in text(client.get("/console/workers/register"))


def test_a_member_sees_its_own_models_and_adapters_only(house: House) -> None:
    acme, other = house.actor("acme"), house.actor("other")
    house.adapter(acme, "pirate", DIGEST)
    house.adapter(other, "secret", OTHERS)
    asked_for(acme)
    BaseModel.objects.create(name="not-theirs", fingerprint="e" * 64, directory="/x", context_length=9)
    sampled(house.worker("http://10.9.8.7:1", "w1"), DIGEST, OTHERS)
    pricing.set_price(Doer("operator", "ann"), house.base, input=150_000, output=600_000)
    pricing.set_price(Doer("operator", "ann"), house.base, input=90_000, output=90_000, plan=acme.tenant.plan)
    pricing.set_price(Doer("operator", "ann"), house.base, input=1, output=1, plan=Plan.objects.create(name="else"))
    for role in Role:
        page = text(client_of(member(acme.tenant, role)).get("/console/t/acme/workers"))
        assert house.base.name in page
        assert ">yes<" in page
        assert "0.09 USD" in page
        assert "0.15 USD" not in page
        assert "acme/pirate" in page
        assert ">w1<" in page
        for hidden in ("other/secret", "secret", "not-theirs", "10.9.8.7", OTHERS[:12], "Retire", "Register"):
            assert hidden not in page, hidden
    found = client_of(member(acme.tenant)).get("/console/t/acme/workers", {"q": "sec"})
    assert found.context["loaded"] == []
    WorkerSample.objects.update(at=timezone.now() - timedelta(minutes=5))
    page = text(client_of(member(acme.tenant)).get("/console/t/acme/workers"))
    assert "Requests are taken all the same" in page
    assert "not now" not in page
    assert ">w1<" not in page
    Worker.objects.update(state="draining")
    page = text(client_of(member(acme.tenant)).get("/console/t/acme/workers"))
    assert "not now" in page
    assert "not known" not in page


@pytest.mark.parametrize("theirs", ["nothing", "pinned", "canary", "asked"])
def test_whether_another_uses_the_same_file_shows_nowhere(theirs: str, house: House) -> None:
    """All that a tenant can see is the same to the byte, but for times and tokens, whatever another does with the same
    digest; its own doing is what it sees, and an operator sees everything."""
    acme, other = house.actor("acme"), house.actor("other")
    house.adapter(acme, "mine", DIGEST)
    w1 = house.worker("http://127.0.0.1:9", "w-seven")
    sampled(w1)
    clients = [client_of(member(acme.tenant, role)) for role in Role]
    before = [everything(client) for client in clients]
    house.adapter(other, "same", DIGEST)
    adapter = Adapter.objects.get(tenant=other.tenant)
    if theirs == "pinned":
        Adapter.objects.filter(pk=adapter.pk, tenant=other.tenant).update(pinned=True)
    elif theirs == "canary":
        change = {"canary": adapter.current_id, "canary_percent": 5}
        Adapter.objects.filter(pk=adapter.pk, tenant=other.tenant).update(**change)
    elif theirs == "asked":
        asked_for(other)
    WorkerSample.objects.all().delete()
    sampled(w1, DIGEST)
    assert [everything(client) for client in clients] == before
    root = client_of(operator())
    for path in ("workers", "adapters/mine", "adapters/mine/versions/1"):
        assert "w-seven" in text(root.get(f"/console/t/acme/{path}"))


@pytest.mark.parametrize("own", ["pinned", "canary", "asked", "asked long ago"])
def test_where_its_adapters_lie_of_its_own_doing_a_tenant_sees(own: str, house: House) -> None:
    acme = house.actor("acme")
    house.adapter(acme, "mine", DIGEST)
    adapter = Adapter.objects.get(tenant=acme.tenant)
    sampled(house.worker("http://127.0.0.1:9", "w-seven"), DIGEST)
    if own == "asked":
        asked_for(acme)
    elif own == "asked long ago":
        asked_for(acme, timedelta(minutes=16))
    else:
        change = {"pinned": True} if own == "pinned" else {"canary": adapter.current_id, "canary_percent": 5}
        Adapter.objects.filter(pk=adapter.pk, tenant=acme.tenant).update(**change)
    client = client_of(member(acme.tenant, Role.VIEWER))
    for path in ("workers", "adapters/mine", "adapters/mine/versions/1"):
        assert ("w-seven" in text(client.get(f"/console/t/acme/{path}"))) is (own != "asked long ago"), path


def asked_for(actor: Any, ago: timedelta = timedelta(0)) -> None:
    """Requests for all that the actor's tenant has."""
    at = timezone.now() - ago
    for version in AdapterVersion.objects.filter(adapter__tenant=actor.tenant):
        early = UUID(int=(int(at.timestamp() * 1000) << 80) | (uuid7().int & (1 << 80) - 1))
        ledger.request(actor.key, at, adapter_version=version, id=early)


def everything(client: Any) -> dict[str, str]:
    """What a member sees of adapters and workers, without times and one-time tokens."""
    pages = (
        "overview",
        "workers",
        "workers?q=mine",
        "adapters",
        "adapters/mine",
        "adapters/mine/versions/1",
        "playground",
    )
    api = ("adapters", "adapters/mine", "adapters/mine/versions", "adapters/mine/versions/1", "adapters/mine/releases")
    found = {path: client.get(f"/console/t/acme/{path}") for path in pages}
    found |= {f"/api/{path}": client.get(f"/api/{path}", headers={"X-Tenant": "acme"}) for path in api}
    shown = {}
    for path, answer in found.items():
        allowed = (200, 403) if path == "playground" else (200,)
        assert answer.status_code in allowed, (path, answer.content.decode())
        shown[path] = re.sub(
            r"<time.*?</time>|csrfmiddlewaretoken[^>]*>|X-CSRFToken[^}]*}", "", answer.content.decode()
        )
    return shown


def test_models_whose_workers_nobody_asks_are_not_said_to_have_none(house: House) -> None:
    w1 = house.worker("http://127.0.0.1:9", "w1")
    client = client_of(operator())
    page = text(client.get("/console/workers"))
    assert "not known" in page
    assert "no worker<" not in page
    house.worker("http://127.0.0.1:10", "w2")
    asked = text(client.get("/console/workers/named/w2/drain/ask"))
    assert "not known whether another worker serves" in asked
    assert "No other worker serves" not in asked
    sampled(w1, problem="down")
    assert "No other worker serves" in text(client.get("/console/workers/named/w2/drain/ask"))
    Worker.objects.filter(name="w2").delete()
    assert "no worker<" in text(client.get("/console/workers"))


def test_what_operators_do_asks_first_and_is_written_down(house: House) -> None:
    w1 = house.worker("http://127.0.0.1:9", "w1")
    sampled(w1)
    client = client_of(operator())
    asked = text(client.get("/console/workers/named/w1/drain/ask"))
    assert "it ran 3 requests and 2 waiting" in asked
    assert f"No other worker serves {house.base.name}" in asked
    sampled(house.worker("http://127.0.0.1:10", "w2"))
    assert "1 other worker then serves" in text(client.get("/console/workers/named/w1/drain/ask"))
    assert text(client.get("/console/workers/named/w1/explode/ask"), 404)
    for verb, state in (("drain", "draining"), ("activate", "active"), ("disable", "disabled")):
        assert client.post(f"/console/workers/named/w1/{verb}/ask").status_code == 302
        w1.refresh_from_db()
        assert w1.state == state
    assert client.post("/console/workers/named/w1/remove")["Location"] == "/console/workers"
    assert not Worker.objects.filter(name="w1").exists()
    assert text(client.get("/console/workers/named/w1"), 404)
    actions = list(AuditEntry.objects.unscoped().order_by("pk").values_list("action", "actor_name"))
    verbs = ("drained", "activated", "disabled", "removed")
    assert actions == [(f"worker.{verb}", "root") for verb in verbs]


def test_a_worker_that_takes_requests_is_not_removed(house: House, answers: str) -> None:
    house.worker(answers, "w1")
    BaseModel.objects.update(fingerprint="f" * 64)
    answer = client_of(operator()).post("/console/workers/named/w1/remove")
    assert "takes requests; drain it first" in text(answer, 409)


def test_base_models_are_retired_and_restored(house: House) -> None:
    acme = house.actor("acme")
    house.adapter(acme, "pirate")
    client, path = client_of(operator()), f"/console/workers/models/{house.base.name}"
    asked = text(client.get(f"{path}/retire"))
    assert "that concerns 1 account and 1 adapter" in asked
    assert client.post(f"{path}/retire").status_code == 302
    house.base.refresh_from_db()
    assert house.base.state == "retired"
    assert "Restore" in text(client.get("/console/workers"))
    assert house.base.name not in text(client_of(member(acme.tenant)).get("/console/t/acme/workers"))
    client.post(f"{path}/restore")
    house.base.refresh_from_db()
    assert house.base.state == "active"
    assert text(client.get("/console/workers/models/none/retire"), 404)
    assert text(client.get(f"{path}/explode"), 404)


def test_registering_says_what_is_wrong_beside_the_field(house: House) -> None:
    client = client_of(operator())
    good = {"name": "w1", "url": "http://127.0.0.1:9", "model": house.base.name, "state": "active"}
    for change, words in (
        ({"name": "a b"}, "letters, numbers, underscores or hyphens"),
        ({"name": "x" * 65}, "at most 64"),
        ({"url": "ftp://x"}, "http://host:port"),
        ({"url": "http://u:p@h:1"}, "bare address"),
        ({"model": "none"}, "valid choice"),
        ({"state": "asleep"}, "valid choice"),
    ):
        assert words in text(client.post("/console/workers/register", good | change), 400), change
    assert not Worker.objects.exists()
    made = client.post("/console/workers/register", good, follow=True)
    assert "It serves nothing now" in text(made)
    assert "already" in text(client.post("/console/workers/register", good), 400)
    page = "/console/workers/named/w1/change"
    changed = opened(client, page) | {"url": "http://127.0.0.1:11", "state": "draining"}
    assert client.post(page, changed).status_code == 302
    worker = Worker.objects.get()
    assert (worker.url, worker.state, worker.base_model) == ("http://127.0.0.1:11", "draining", house.base)
    entry = AuditEntry.objects.unscoped().get(action="worker.changed")
    assert (entry.before, entry.after) == (
        {"url": "http://127.0.0.1:9", "state": "active"},
        {"url": "http://127.0.0.1:11", "state": "draining"},
    )
    assert "http://host:port" in text(client.post(page, opened(client, page) | {"url": "ftp://x"}), 400)


def test_a_stale_form_brings_no_drained_worker_back(house: House) -> None:
    client, page = client_of(operator()), "/console/workers/named/w1/change"
    Worker.objects.create(name="w1", url="http://127.0.0.1:9", base_model=house.base)
    stale = opened(client, page)
    client.post("/console/workers/named/w1/drain/ask")
    assert client.post(page, stale | {"url": "http://127.0.0.1:11"}).status_code == 302
    worker = Worker.objects.get()
    assert (worker.url, worker.state) == ("http://127.0.0.1:11", "draining")
    Worker.objects.all().delete()
    assert client.post(page, stale).status_code == 404


@pytest.fixture
def answers() -> Iterator[str]:
    with answering(metrics=b"vllm:num_requests_running 7\n") as url:
        yield url


@pytest.mark.usefixtures("grant_keys")
def test_a_worker_of_other_weights_is_refused_and_now_is_now(house: House, answers: str) -> None:
    client = client_of(operator())
    body = {"name": "w1", "url": answers, "model": house.base.name, "state": "active"}
    assert "serves weights with the fingerprint ffff" in text(client.post("/console/workers/register", body), 400)
    BaseModel.objects.update(fingerprint="f" * 64)
    client.post("/console/workers/register", body)
    assert "not asked yet" in text(client.get("/console/workers"))
    now = text(client.get("/console/workers", {"now": "1"}))
    assert "As they are now" in now
    assert ">7<" in now


def test_queries_do_not_grow(house: House) -> None:
    acme = house.actor("acme")
    user, own = operator(), member(acme.tenant)

    def queries(url: str, who: Any) -> int:
        client = client_of(who)
        with CaptureQueriesContext(
            connection,
        ) as counted:
            text(client.get(url))
        return len(counted)

    pages = [("/console/workers", user), ("/console/workers/named/w0", user), ("/console/t/acme/workers", own)]
    found = []
    for first, last in ((0, 3), (3, 30)):
        for number in range(first, last):
            digest = f"{number:064x}"
            house.adapter(acme, f"a{number}", digest)
            worker = house.worker(f"http://127.0.0.1:{number + 1}", f"w{number}")
            sampled(worker, *(f"{other:064x}" for other in range(number + 1)))
            BaseModel.objects.create(name=f"m{number}", fingerprint="e" * 64, directory="/x", context_length=9)
        sampled(Worker.objects.get(name="w0"), *(f"{other:064x}" for other in range(last)))
        asked_for(acme)
        found.append([queries(*page) for page in pages])
    assert found[0] == found[1]


@pytest.mark.browser
@pytest.mark.slow
async def test_a_worker_is_drained_in_a_dialog(page: Page, gateway: Process, house: House) -> None:
    await sign_in(page.context, gateway.url, operator())
    await page.goto(f"{gateway.url}/console/workers")
    await expect(page.get_by_text("As they are now.")).to_be_visible()
    await expect(page.locator("#fleet").get_by_text("serves", exact=True)).to_be_visible()
    await page.get_by_role("link", name="stub").click()
    await page.get_by_role("button", name="Drain").or_(page.get_by_role("link", name="Drain")).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text("No other worker serves")).to_be_visible()
    await shoot(page, "worker-drain-dialog")
    await dialog.get_by_role("button", name="Drain it").click()
    await expect(page.get_by_text("Worker stub takes nothing new")).to_be_visible()
    await expect(page.locator("#now").get_by_text("draining", exact=True)).to_be_visible()
