from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.callers import Role
from tenants.models import AdapterVersion, AuditEntry, Member, Payload, PayloadStoring, Price
from tests.console.people import client_of, member, operator
from tests.console.request_rows import denial, ended_request, stored_request
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db


def shown(client: Any, path: str, **query: Any) -> list[str]:
    answer = client.get(path, query)
    assert answer.status_code == 200
    return [str(row.pk) for row in answer.context["listing"].items]


def test_requests_are_looked_for(house: House, acme: Actor) -> None:
    now = timezone.now()
    other = house.actor("other")
    old = ended_request(house, acme, now - timedelta(days=3))
    failed = ended_request(house, acme, now - timedelta(hours=1), outcome="failed", first_token_ms=None)
    theirs = ended_request(house, other, now)
    viewer, path = client_of(member(acme.tenant, Role.VIEWER)), "/console/t/acme/requests"
    mine = [str(failed.pk), str(old.pk)]
    assert shown(viewer, path) == mine
    assert shown(viewer, path, state="failed") == [str(failed.pk)]
    assert shown(viewer, path, key=acme.key.public_id, model=house.base.name) == mine
    assert shown(viewer, path, key=other.key.public_id) == []
    assert shown(viewer, path, model="acme/nothing") == []
    since = (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    assert shown(viewer, path, since=since) == [str(failed.pk)]
    assert shown(viewer, path, until=since) == [str(old.pk)]
    everybody, root = "/console/requests", client_of(operator())
    assert set(shown(root, everybody)) == {*mine, str(theirs.pk)}
    assert shown(root, everybody, tenant="other") == [str(theirs.pk)]
    assert root.get(everybody, {"tenant": "nobody"}).status_code == 404


def test_requests_of_a_version_that_is_deleted(house: House, acme: Actor) -> None:
    house.adapter(acme, "pirate")
    version = AdapterVersion.objects.get(adapter__tenant=acme.tenant)
    row = ended_request(house, acme, adapter_version=version)
    AdapterVersion.objects.filter(adapter__tenant=acme.tenant).update(deleted_at=timezone.now())
    client = client_of(operator())
    for place in ("requests", "t/acme/requests"):
        assert shown(client, f"/console/{place}", model="acme/pirate") == [str(row.pk)]
        assert shown(client, f"/console/{place}", model=house.base.name) == []


def test_pages_of_a_keys_requests_go_on_when_what_was_last_has_ended(house: House, acme: Actor) -> None:
    made = [ended_request(house, acme) for _ in range(60)]
    client = client_of(member(acme.tenant))
    first = client.get("/console/t/acme/requests", {"key": acme.key.public_id}).context["listing"]
    second = client.get(first.more).context["listing"]
    assert [row.pk for row in [*first.items, *second.items]] == [row.pk for row in reversed(made)]
    everybody = client_of(operator())
    assert shown(everybody, "/console/requests", state="failed", after=made[5].pk) == []


def test_requests_of_a_member(house: House, acme: Actor) -> None:
    ada = member(acme.tenant, name="ada")
    own = Member.objects.get(tenant=acme.tenant, user=ada)
    row = ended_request(house, acme, member_id=own.pk)
    ended_request(house, acme)
    client, path = client_of(ada), "/console/t/acme/requests"
    for text in ("ada", "ADA@example.org", str(own.public_id)):
        assert shown(client, path, member=text) == [str(row.pk)]
    page = client.get(path, {"member": "eve"})
    assert "Nobody called eve is a member of this account." in page.content.decode()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"since": "soon"}, "From (UTC): Enter a valid date/time."),
        ({"state": "sunk"}, "State: Select a valid choice."),
        ({"key": "k" * 500}, "Key: Ensure this value has at most 32 characters"),
        ({"model": "\0" + "m" * 300}, "Model: Ensure this value has at most 200 characters"),
    ],
)
def test_wrong_filters_are_named(query: dict[str, str], words: str, house: House, acme: Actor) -> None:
    ended_request(house, acme)
    page = client_of(member(acme.tenant)).get("/console/t/acme/requests", query)
    assert page.status_code == 200
    assert words in page.content.decode()
    assert page.context["listing"].items == []


def test_pages_of_requests(house: House, acme: Actor) -> None:
    now = timezone.now()
    made = [ended_request(house, acme, now - timedelta(seconds=number // 2)) for number in range(60)]
    client, path = client_of(member(acme.tenant)), "/console/t/acme/requests?state=completed"
    first = client.get(path).context["listing"]
    second = client.get(first.more).context["listing"]
    assert "state=completed" in first.more
    assert [len(first.items), len(second.items), second.more] == [50, 10, ""]
    assert {row.pk for row in [*first.items, *second.items]} == {row.pk for row in made}
    assert client.get(path, {"after": "x"}).status_code == 400


def test_the_number_of_queries_does_not_grow(house: House, acme: Actor) -> None:
    client = client_of(member(acme.tenant))
    for name in ("requests", "denials"):
        counts = []
        for number in (3, 30):
            for index in range(number):
                ended_request(house, acme)
                denial(acme, code=f"{name}_{number}_{index}")
            with CaptureQueriesContext(
                connection,
            ) as queries:
                assert client.get(f"/console/t/acme/{name}").status_code == 200
            counts.append(len(queries))
        assert counts[0] == counts[1]


def test_where_the_time_went_and_what_was_billed(house: House, acme: Actor) -> None:
    price = Price.objects.create(
        base_model=house.base, input=1_500_000, cached_input=750_000, output=6_000_000, valid_from=timezone.now()
    )
    row = ended_request(house, acme, price=price)
    page = client_of(member(acme.tenant, Role.VIEWER)).get(f"/console/t/acme/requests/{row.pk}")
    text = page.content.decode()
    parts = {part.name: part for part in page.context["bar"]}
    assert [part.ms for part in parts.values()] == [20, 150, 470, 3681]
    assert sum(part.width for part in parts.values()) == pytest.approx(100, abs=0.01)
    assert parts["Queue"].x == pytest.approx(parts["On the way to the worker and back"].width, abs=0.01)
    for words in ("470 ms", "at most 400 tokens", "210 tokens", "64 tokens", "6.00 ", "0.000512 ", "completed"):
        assert words in text
    assert "style=" not in text


_UNTIMED = {"first_token_ms": None, "queue_ms": None, "prefill_ms": None}


@pytest.mark.parametrize(
    ("values", "parts", "words"),
    [
        ({"queue_ms": None, "prefill_ms": None}, [640, 3681], "does not say how long"),
        ({"queue_ms": None, "prefill_ms": None, "outcome": "cancelled"}, [640, 3681], "had not said how long"),
        (_UNTIMED, [4321], "ended before its first token"),
        ({**_UNTIMED, "outcome": "failed"}, [4321], "failed before its first token"),
        ({**_UNTIMED, "outcome": "cancelled"}, [4321], "was stopped before its first token"),
        ({**_UNTIMED, "outcome": "abandoned"}, [4321], "The gateway that served it was lost, and with it"),
        ({"outcome": "cancelled"}, [20, 150, 470, 3681], "stopped: charged are the prompt"),
        ({"outcome": "failed"}, [20, 150, 470, 3681], "failed after its first token: charged"),
    ],
)
def test_what_is_not_known_is_said(values: Any, parts: list[int], words: str, house: House, acme: Actor) -> None:
    row = ended_request(house, acme, **values)
    page = client_of(member(acme.tenant)).get(f"/console/t/acme/requests/{row.pk}")
    assert [part.ms for part in page.context["bar"]] == parts
    text = page.content.decode()
    assert words in text
    if values.get("outcome", "completed") != "completed":
        assert "This worker does not say" not in text, "of one that was cut off nobody knows"


def test_an_unknown_request(acme: Actor) -> None:
    client = client_of(member(acme.tenant))
    for text in ("x", "01890000-0000-7000-8000-000000000000", "0" * 300):
        assert client.get(f"/console/t/acme/requests/{text}").status_code == 404


def test_denials_say_which_limit_and_what_helps(house: House, acme: Actor) -> None:
    row, other = denial(acme), house.actor("other")
    denial(acme, code="model_not_found", limit="", subject="", count=2)
    denial(other, count=1_000_000)
    client, path = client_of(member(acme.tenant, Role.VIEWER)), "/console/t/acme/denials"
    page = client.get(path)
    text = page.content.decode()
    assert "tokens_per_minute</strong> of the account" in text
    assert "Ask for fewer, or raise it" in text
    assert [reason["total"] for reason in page.context["today"]] == [7, 2]
    assert [each.code for each in client.get(path, {"code": "model_not_found"}).context["listing"].items] == [
        "model_not_found"
    ]
    found = client.get(path, {"q": str(row.last_request_id)}).context["answer"]
    assert found["row"] == row
    theirs = denial(other, limit="max_concurrent").last_request_id
    for nobodys in (str(theirs), str(ended_request(house, other).pk), "01890000-0000-7000-8000-000000000000"):
        answer = client.get(path, {"q": nobodys})
        assert answer.context["answer"] is None
        assert "is not kept by itself" in answer.content.decode()
        unknown = client.get(path, {"q": "01890000-0000-7000-8000-000000000001"}).content.decode()
        assert _notice(answer.content.decode()) == _notice(unknown), "a stranger's is as unknown as nobody's"
    everybody = client_of(operator()).get("/console/denials")
    assert len(everybody.context["listing"].items) == 4


def _notice(text: str) -> str:
    return text[text.index('class="notice') :].partition("</p>")[0]


def test_why_of_a_request_that_was_admitted_or_of_no_id(house: House, acme: Actor) -> None:
    row = ended_request(house, acme)
    viewer = client_of(member(acme.tenant, Role.VIEWER))
    for client, place in ((viewer, "/console/t/acme"), (client_of(operator()), "/console")):
        for text in (str(row.pk), f" {row.pk.hex.upper()}", f"chatcmpl-{row.pk.hex}"):
            answer = client.get(f"{place}/denials", {"q": text})
            assert (answer.status_code, answer.headers.get("location")) == (302, f"{place}/requests/{row.pk}")
        assert client.get(f"{place}/requests/{row.pk}").status_code == 200
        text = client.get(f"{place}/denials", {"q": "<b>rate_limit"}).content.decode()
        assert "That is no request id: &lt;b&gt;rate_limit." in text
        assert "is not kept by itself" not in text


def test_rarer_reasons_are_counted(acme: Actor) -> None:
    client = client_of(member(acme.tenant))
    for number in range(8):
        denial(acme, code=f"code_{number}", count=9)
    assert "more reason" not in client.get("/console/t/acme/denials").content.decode()
    denial(acme, code="rare", count=1)
    assert "and 1 more reason, of 1 request:" in client.get("/console/t/acme/denials").content.decode()
    denial(acme, code="rare_too", count=1)
    page = client.get("/console/t/acme/denials")
    assert len(page.context["today"]) == 8
    assert "and 2 more reasons, of 2 requests:" in page.content.decode()


def test_pages_of_denials(acme: Actor) -> None:
    for number in range(60):
        denial(acme, code=f"code_{number}")
    client = client_of(member(acme.tenant))
    first = client.get("/console/t/acme/denials").context["listing"]
    second = client.get(first.more).context["listing"]
    assert [len(first.items), len(second.items), second.more] == [50, 10, ""]
    assert {row.pk for row in first.items}.isdisjoint(row.pk for row in second.items)


def test_empty_lists_say_what_to_do_first(acme: Actor) -> None:
    client = client_of(member(acme.tenant))
    assert "No request has been admitted yet" in client.get("/console/t/acme/requests").content.decode()
    assert "No request was found" in client.get("/console/t/acme/requests?model=x").content.decode()
    assert "No request has been refused" in client.get("/console/t/acme/denials").content.decode()
    assert "No refusal was found" in client.get("/console/t/acme/denials?code=x").content.decode()


def test_a_stored_prompt_and_answer_are_shown_to_developers(house: House, acme: Actor) -> None:
    row = stored_request(house, acme)
    path = f"/console/t/acme/requests/{row.pk}"
    developer, viewer = (client_of(member(acme.tenant, role)) for role in (Role.DEVELOPER, Role.VIEWER))
    assert f"{path}/payload" in developer.get(path).content.decode()
    text = developer.get(f"{path}/payload").content.decode()
    assert "What is &lt;b&gt;2&lt;/b&gt; + 2?" in text
    assert "further characters of 100 are not stored" in text
    assert "Reading them needs the role developer." in viewer.get(path).content.decode()
    assert viewer.get(f"{path}/payload").status_code == 403


def test_operators_read_it_only_where_the_account_lets_them(house: House, acme: Actor) -> None:
    row, root = stored_request(house, acme), client_of(operator())
    for path in (f"/console/t/acme/requests/{row.pk}", f"/console/requests/{row.pk}"):
        assert "does not let operators read them" in root.get(path).content.decode()
        assert "Four." not in root.get(f"{path}/payload").content.decode()
    PayloadStoring.objects.filter(tenant=acme.tenant).update(operators_may_read=True)
    assert "Four." in root.get(f"/console/requests/{row.pk}/payload").content.decode()
    look = AuditEntry.objects.get(tenant=acme.tenant, action="payload.read")
    assert (look.actor_kind, look.subject) == ("operator", str(row.pk))


def test_an_owner_turns_storing_on_and_off(house: House, acme: Actor) -> None:
    owner, path = client_of(member(acme.tenant)), "/console/t/acme/settings/payloads"
    assert "not stored" in owner.get(path).content.decode()
    for wrong in ("0", "31", "", "x", "9" * 40):
        answer = owner.post(path, {"days": wrong})
        assert (answer.status_code, bool(answer.context["form"].errors["days"])) == (400, True)
    assert owner.post(path, {"days": "5"})["Location"] == path
    assert "stored for 5 days" in owner.get(path).content.decode()
    stored_request(house, acme)
    question = owner.get(f"{path}/off").content.decode()
    assert "1 request&#x27;s prompt and answers are deleted at once" in question
    assert owner.post(f"{path}/off")["Location"] == path
    assert not Payload.objects.filter(tenant=acme.tenant).exists()
    actions = AuditEntry.objects.filter(tenant=acme.tenant).order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["payloads.storing_set", "payloads.storing_ended"]


def test_an_operator_does_not_decide_it_for_an_account(house: House, acme: Actor) -> None:
    root, path = client_of(operator()), "/console/t/acme/settings/payloads"
    assert "Only the account" in root.get(path).content.decode()
    answer = root.post(path, {"days": "5", "operators_may_read": "on"})
    assert "own owners decide" in answer.content.decode()
    assert not PayloadStoring.objects.filter(tenant=acme.tenant).exists()
