"""What surrounds every page, and the status of a form that was wrong."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tenants.callers import Role
from tenants.models import AdapterVersion, Member
from tests.console.people import client_of, member, operator
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db

IN_DIALOG = {"HX-Request": "true", "HX-Target": "dialog-body"}


class Page(HTMLParser):
    """The attributes of every element of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(dict(attrs))

    def one(self, **wanted: str) -> dict[str, str | None]:
        (found,) = [each for each in self.elements if wanted.items() <= each.items()]
        return found


def test_the_menu_of_accounts_says_when_there_are_more(house: House, acme: Actor) -> None:
    user = member(acme.tenant)
    for number in range(19):
        Member.objects.create(tenant=house.actor(f"b{number:02}").tenant, user=user, role=Role.VIEWER)
    assert "All accounts" not in client_of(user).get("/console/t/acme/overview").content.decode()
    Member.objects.create(tenant=house.actor("zebra").tenant, user=user, role=Role.VIEWER)
    page = client_of(user).get("/console/t/acme/overview").content.decode()
    menu = re.sub(r"\s+", " ", page[page.index('<details class="dropdown where">') : page.index("</details>")])
    assert "/console/t/b18/overview" in menu
    assert "zebra" not in menu
    assert '<a href="/console/">All accounts' in menu
    assert "The first 20 are here" in menu
    assert "/console/t/zebra/overview" in client_of(user).get("/console/").content.decode()
    found = client_of(user).get("/console/?q=EBR").content.decode()
    assert "/console/t/zebra/overview" in found
    assert "/console/t/b18/overview" not in found.partition('id="list"')[2]
    assert "no account like “nosuch”" in client_of(user).get("/console/?q=nosuch").content.decode()
    for number in range(30):
        Member.objects.create(tenant=house.actor(f"c{number:02}").tenant, user=user, role=Role.VIEWER)
    first = client_of(user).get("/console/")
    assert "/console/t/zebra/overview" not in first.content.decode(), "51 of them"
    onward = Page(first.content.decode()).one(rel="next")["href"] or ""
    assert "/console/t/zebra/overview" in client_of(user).get(onward).content.decode()
    wrong = client_of(user).get("/console/?after=stranger")
    assert (wrong.status_code, "nothing of this id" in wrong.content.decode()) == (400, True)
    user.is_staff = True
    user.save()
    assert '<a href="/console/tenants">All accounts' in client_of(user).get("/console/overview").content.decode()


def test_what_is_wrong_with_a_field_is_read_with_its_help(house: House) -> None:
    root = client_of(operator())
    body = {"name": "a b", "url": "http://127.0.0.1:9", "model": house.base.name, "state": "active"}
    right = Page(root.get("/console/workers/register").content.decode())
    assert right.one(id="id_url")["aria-describedby"] == "id_url_helptext"
    answer = root.post("/console/workers/register", body | {"url": ""})
    assert answer.status_code == 400
    page = Page(answer.content.decode())
    field = page.one(id="id_url")
    assert field["aria-invalid"] == "true"
    assert field["aria-describedby"] == "id_url_helptext id_url_error"
    for each in (field["aria-describedby"] or "").split():
        page.one(id=each)


def test_what_is_wrong_with_several_boxes_is_read_with_them(house: House, acme: Actor) -> None:
    answer = client_of(member(acme.tenant)).post("/console/t/acme/webhooks/new", {"url": "https://example.org/"})
    assert answer.status_code == 400
    assert re.search(r'<fieldset aria-describedby="[^"]*id_events_error">', answer.content.decode())
    Page(answer.content.decode()).one(id="id_events_error")


def test_a_question_in_a_dialog_begins_at_what_changes_nothing(house: House, acme: Actor) -> None:
    house.adapter(acme, "pirate")
    adapter = AdapterVersion.objects.get(adapter__tenant=acme.tenant).adapter
    AdapterVersion.objects.create(adapter=adapter, number=2, state="ready", digest="a" * 64)
    client, url = client_of(member(acme.tenant)), "/console/t/acme/adapters/pirate/versions/2/delete"
    asked = client.get(url, headers=IN_DIALOG).content.decode()
    assert "<!doctype" not in asked
    assert [each for each in Page(asked).elements if "autofocus" in each] == [Page(asked).one(**{"data-close": None})]  # type: ignore[arg-type]
    assert "autofocus" not in client.get(url).content.decode().partition("<template")[0]
    assert client.post(url).status_code == 302
    gone = client.get(url, headers=IN_DIALOG)
    assert gone.status_code == 404
    assert "<!doctype" not in gone.content.decode()
    assert 'class="trouble"' in gone.content.decode()
    assert "autofocus>Close" in gone.content.decode()


def test_the_status_of_a_question_that_was_answered_wrongly(house: House, acme: Actor) -> None:
    root = client_of(operator())
    house.adapter(acme, "pirate")
    url = "/console/tenants/acme/delete"
    wrong = root.post(url, {"word": "other"})
    assert (wrong.status_code, "Type acme to go on" in wrong.content.decode()) == (400, True)
    assert Page(wrong.content.decode()).one(id="word")["aria-describedby"] == "id_problem"
    assert root.post(url, {"word": "acme"}).status_code == 409
    assert root.post("/console/tenants/acme/suspend", {"reason": "x" * 501}).status_code == 400
