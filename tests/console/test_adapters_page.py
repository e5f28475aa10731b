"""Adapters in the console, as a member and an operator find them; uploads without the page's script."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet.dialects.report import Report
from fleet.models import WorkerSample
from fleet.samples import _stored
from tenants import adapter_shares, intake, releases, tasks
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import AdapterUpload, AdapterVersion, AuditEntry
from tests.console.opened import opened
from tests.console.people import client_of, member, operator
from tests.console.samples import two_versions
from tests.gateway.api import ledger
from tests.gateway.house import Actor, House
from tests.tenants.adapter_parts import contents, tar_of
from tests.tenants.conftest import write_adapter

pytestmark = pytest.mark.django_db

BY = Doer("command", "tests")
AT = "/console/t/acme/adapters"


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.INCOMING_DIR, settings.ADAPTER_STORE = tmp_path / "incoming", tmp_path / "store"


@pytest.fixture
def developer(acme: Actor) -> Client:
    return client_of(member(acme.tenant, Role.DEVELOPER))


@pytest.fixture(autouse=True)
def _not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.check_adapter, "delay", lambda pk: None)


def text(answer: Any) -> str:
    """What a reader sees, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def named(files: dict[str, bytes]) -> list[io.BytesIO]:
    made = []
    for name, data in files.items():
        file = io.BytesIO(data)
        file.name = name
        made.append(file)
    return made


def audited(action: str) -> AuditEntry:
    found: AuditEntry = AuditEntry.objects.unscoped().filter(action=action).latest("at")
    return found


def test_the_list_says_what_answers_and_the_platform_sees_everybodys(house: House, acme: Actor) -> None:
    adapter = two_versions(house, acme)
    house.adapter(house.actor("other"), "theirs")
    own = client_of(member(acme.tenant, Role.VIEWER)).get(AT)
    assert f"{adapter.name} tiny v2 –" in text(own)
    assert "v3 waits for its trial" in text(own)
    assert "theirs" not in own.content.decode()
    assert "Upload an adapter" not in own.content.decode()
    everything = client_of(operator())
    assert "other/theirs" in text(everything.get("/console/adapters"))
    for query, found in (("theirs", True), ("other", True), ("other/th", True), ("acme", False), ("other/x", False)):
        assert ("other/theirs" in text(everything.get("/console/adapters", {"q": query}))) is found, query
    assert "No adapter was found" in text(everything.get("/console/adapters", {"q": "nothing\0such"}))


def test_an_empty_list_says_what_to_do_first(acme: Actor, developer: Client) -> None:
    assert "Upload one : the two files" in text(developer.get(AT))
    assert "A developer or owner" in text(client_of(member(acme.tenant, Role.VIEWER)).get(AT))


def test_quotas_are_shown_with_what_is_left(house: House) -> None:
    small = house.actor("small", max_adapters=3, max_adapter_bytes=5_000_000)
    house.adapter(small, "one")
    shown = text(client_of(member(small.tenant)).get("/console/t/small/adapters"))
    assert "Adapters 1 of 3, 2 left" in shown
    assert "of 5.0 MB, 5.0 MB left" in shown


@pytest.mark.parametrize("path", [AT, "/console/adapters"])
def test_the_lists_queries_do_not_grow(path: str, house: House, acme: Actor) -> None:
    client = client_of(operator())

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(path).status_code == 200
        return len(captured)

    for _ in range(3):
        two_versions(house, acme)
    few = queries()
    for _ in range(27):
        two_versions(house, acme)
    assert queries() == few


def test_an_adapters_queries_do_not_grow_with_versions(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert developer.get(f"{AT}/{adapter.name}").status_code == 200
        return len(captured)

    few = queries()
    for number in range(4, 34):
        AdapterVersion.objects.create(adapter=adapter, number=number, state="ready", digest=uuid4().hex * 2)
    assert queries() == few


def test_a_page_follows_only_while_something_is_undecided(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    pages = (f"{AT}/{adapter.name}", f"{AT}/{adapter.name}/versions/3")
    for page in pages:
        assert "every 2s" in developer.get(page).content.decode()
    AdapterVersion.objects.filter(adapter=adapter, adapter__tenant=acme.tenant, number=3).update(state="ready")
    for page in pages:
        assert "every 2s" not in developer.get(page).content.decode()


# Uploads --------------------------------------------------------------------------------------------------------------


def test_files_without_the_script(house: House, acme: Actor, developer: Client, tmp_path: Path) -> None:
    files = {**contents(write_adapter(tmp_path / "a")), "optimizer.pt": b"not part of it"}
    answer = developer.post(f"{AT}/-/upload", {"name": "pirate", "base_model": "", "content": named(files)})
    assert answer["Location"] == f"{AT}/pirate/versions/1"
    assert audited("upload.completed").actor_kind == "member"
    tar = tar_of(contents(write_adapter(tmp_path / "b", seed=1)), "w:gz")
    answer = developer.post(f"{AT}/-/upload", {"name": "pirate", "content": named({"mine.tgz": tar})})
    assert answer["Location"] == f"{AT}/pirate/versions/2"
    assert "being checked" in text(developer.get(answer["Location"]))


def test_every_problem_of_a_rejected_version_is_shown(acme: Actor, developer: Client, tmp_path: Path) -> None:
    """An adapter of another model's shapes, with something more in its config."""
    files = contents(write_adapter(tmp_path / "a", bias="all"))
    developer.post(f"{AT}/-/upload", {"name": "pirate", "content": named(files)})
    version = AdapterVersion.objects.get(adapter__tenant=acme.tenant)
    intake.check(version.pk)
    version.refresh_from_db()
    assert len(version.problems) > 1
    page = developer.get(f"{AT}/pirate/versions/1")
    rows = page.content.decode().split("What to do")[1]
    for problem in version.problems:
        assert problem["field"] is not None
        assert problem["field"] in rows
    assert "It was not taken in" in text(page)
    assert "every 2s" not in page.content.decode()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"name": "Not A Name"}, "Lower-case letters, digits"),
        ({"name": "x" * 64}, "at most 63 characters"),
        ({"name": "p\0q"}, "Null characters are not allowed"),
        ({"name": ""}, "This field is required"),
        ({"base_model": "unknown"}, "Select a valid choice"),
        ({"content": []}, "This field is required"),
        ({"content": {"notes.txt": b"x"}}, "adapter_config.json and adapter_model.safetensors are expected"),
        ({"content": {"adapter.tar": b"no tar at all"}}, "adapter.tar"),
        ({"content": {f"{number}.tar": b"x" for number in range(21)}}, "at most 20 files"),
    ],
)
def test_what_is_wrong_stands_beside_the_form(
    sent: dict[str, Any], said: str, developer: Client, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"name": "pirate", "content": contents(write_adapter(tmp_path / "a")), **sent}
    values["content"] = named(values["content"]) if values["content"] else []
    answer = developer.post(f"{AT}/-/upload", values)
    assert answer.status_code == 400
    assert said in text(answer)
    assert not AdapterVersion.objects.unscoped().exists()
    assert not AdapterUpload.objects.unscoped().exists()


def test_a_full_quota_is_refused_with_its_name(house: House, tmp_path: Path) -> None:
    small = house.actor("small", max_adapters=0)
    files = named(contents(write_adapter(tmp_path / "a")))
    answer = client_of(member(small.tenant)).post(
        "/console/t/small/adapters/-/upload", {"name": "pirate", "content": files}
    )
    assert (answer.status_code, "The quota max_adapters of 0 would be exceeded" in text(answer)) == (400, True)


def test_an_open_upload_is_given_up(house: House, acme: Actor, developer: Client) -> None:
    made = AdapterUpload.objects.create(
        tenant=acme.tenant,
        name="parrot",
        base_model=house.base,
        files=[],
        num_bytes=5,
        expires_at=timezone.now() + timedelta(hours=1),
    )
    assert "parrot" in text(developer.get(AT))
    assert "Give the upload of parrot up?" in text(developer.get(f"{AT}/-/uploads/{made.pk}/cancel"))
    assert developer.post(f"{AT}/-/uploads/{made.pk}/cancel").status_code == 302
    assert "parrot" not in text(developer.get(AT)).replace("The upload of parrot is given up.", "")
    assert audited("upload.cancelled").subject == str(made.pk)


# Releases -------------------------------------------------------------------------------------------------------------


def test_a_rollback_says_what_answers_from_then_on(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    page = f"{AT}/{adapter.name}/rollback"
    asked = text(developer.get(page))
    assert f"Roll {adapter} back to v1?" in asked
    assert f"v1 answers all requests for {adapter} from then on; now it is v2." in asked
    assert developer.post(page, opened(developer, page))["Location"] == f"{AT}/{adapter.name}"
    adapter.refresh_from_db()
    assert adapter.current is not None
    assert adapter.current.number == 1
    assert audited("adapter.rolled_back").subject == str(adapter)
    again = developer.get(page)
    assert (again.status_code, "has no release to go back to" in text(again)) == (409, True)


@pytest.mark.parametrize("sent", ["twice", "late", "without", "nonsense"])
def test_a_rollback_goes_back_from_the_release_it_was_asked_about(
    sent: str, house: House, acme: Actor, developer: Client
) -> None:
    adapter = two_versions(house, acme)
    AdapterVersion.objects.create(adapter=adapter, number=4, state="ready", digest="4" * 64)
    releases.promote(BY, acme.tenant, adapter.name, 4)
    page = f"{AT}/{adapter.name}/rollback"
    form = opened(developer, page)
    if sent == "twice":
        assert developer.post(page, form).status_code == 302
    elif sent == "late":
        releases.set_canary(BY, acme.tenant, adapter.name, 1, 10)
    else:
        form = {} if sent == "without" else {"release": "9" * 5000}
    before = releases.history(adapter).count()
    refused = developer.post(page, form)
    assert (refused.status_code, "changed after this was asked" in text(refused)) == (409, True)
    assert releases.history(adapter).count() == before


def test_going_back_from_a_canary_only_ends_it(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    releases.set_canary(BY, acme.tenant, adapter.name, 1, 25)
    assert "End the canary" in text(developer.get(f"{AT}/{adapter.name}"))
    page = f"{AT}/{adapter.name}/rollback"
    asked = text(developer.get(page))
    assert f"End the canary of {adapter}?" in asked
    assert "v1, which answers 25 % of the requests now, answers none." in asked
    assert "v2 answers all of them" in asked
    assert "back to v2" not in asked
    form = opened(developer, page)
    assert developer.post(page, form).status_code == 302
    refused = developer.post(page, form)
    assert (refused.status_code, "changed after this was asked" in text(refused)) == (409, True)
    adapter.refresh_from_db()
    assert (adapter.current.number if adapter.current else None, adapter.canary) == (2, None)
    assert f"Roll {adapter} back to v1?" in text(developer.get(page))


def test_a_canary_is_set_changed_and_ended(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    page = f"{AT}/{adapter.name}/canary"
    assert 'value="10"' in developer.get(page, {"version": "1"}).content.decode()
    assert developer.post(page, {"version": "1", "percent": "25"}).status_code == 302
    assert "v1 as the canary for 25 %" in text(developer.get(f"{AT}/{adapter.name}"))
    assert "v1, 25 %" in text(developer.get(f"{AT}/{adapter.name}/releases"))
    asked = text(developer.get(f"{AT}/{adapter.name}/versions/1/promote"))
    assert "The canary (v1, 25 %) ends." in asked
    assert developer.post(page, {"version": "1", "percent": "0"}).status_code == 302
    adapter.refresh_from_db()
    assert (adapter.canary, adapter.canary_percent) == (None, 0)
    for sent, said in (
        ({"version": "1", "percent": "101"}, "less than or equal to 100"),
        ({"version": "1", "percent": "x"}, "Enter a whole number"),
        ({"version": "2", "percent": "5"}, "is the current version already"),
        ({"version": "3", "percent": "5"}, "only a ready version can answer"),
        ({"version": "99", "percent": "5"}, "There is no version"),
        ({"version": "9" * 99, "percent": "5"}, "less than or equal to 2147483647"),
        ({"version": "1", "percent": "0"}, "is no canary"),
    ):
        answer = developer.post(page, sent)
        assert (answer.status_code, said in text(answer)) == (400, True), sent


def test_a_canary_on_an_old_version_is_changed_and_ended(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    page = f"{AT}/{adapter.name}/canary"
    assert developer.post(page, {"version": "1", "percent": "25"}).status_code == 302
    made = [AdapterVersion(adapter=adapter, number=n, state="ready", digest=f"{n:064x}") for n in range(4, 230)]
    AdapterVersion.objects.bulk_create(made)
    shown = developer.get(page)
    assert 'name="version" value="1"' in shown.content.decode()
    assert "Ready, newest first: v229, v228," in text(shown)
    for percent in (60, 0):
        assert developer.post(page, {"version": "1", "percent": percent}).status_code == 302
        adapter.refresh_from_db()
        assert adapter.canary_percent == percent


def test_a_version_that_is_not_ready_is_not_promoted(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    page = f"{AT}/{adapter.name}/versions/3/promote"
    assert "It cannot be promoted now: it is checked" in text(developer.get(page))
    answer = developer.post(page)
    assert (answer.status_code, "only a ready version can answer" in text(answer)) == (409, True)
    assert developer.post(f"{AT}/{adapter.name}/versions/1/promote").status_code == 302
    assert audited("adapter.promoted").after["version"] == 1


def test_automatic_promotion_is_switched(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    page = f"{AT}/{adapter.name}/automatic"
    for wanted, value in (("no", False), ("no", False), ("yes", True)):
        assert developer.post(f"{page}?to={wanted}").status_code == 302
        adapter.refresh_from_db()
        assert adapter.auto_promote is value


# Versions -------------------------------------------------------------------------------------------------------------


def test_two_versions_are_compared(house: House, acme: Actor, developer: Client, settings: Any, tmp_path: Path) -> None:
    adapter = two_versions(house, acme)
    for number, rank, modules in ((1, 4, ("q_proj", "v_proj")), (3, 8, ("q_proj", "k_proj"))):
        targets = [{"module": f"0.{name}", "rank": rank, "scaling": 2.0, "dora": False} for name in modules]
        targets.append({"module": "0.o_proj", "rank": 4, "scaling": 1.0, "dora": False})
        version = AdapterVersion.objects.get(adapter=adapter, adapter__tenant=acme.tenant, number=number)
        made = write_adapter(Path(settings.ADAPTER_STORE) / version.digest[:2] / version.digest, rank=rank)
        assert (made / "adapter_config.json").exists()
        spec = {"dtype": "float16", "max_rank": rank, "targets": targets}
        rows = AdapterVersion.with_deleted.unscoped().filter(pk=version.pk)
        if version.state == "ready":  # which a trigger keeps as it is: a ninth with its content
            AdapterVersion.objects.create(
                adapter=adapter, number=9, state="pending", digest=version.digest, spec=spec, stored_bytes=1_500_000
            )
        else:
            rows.update(spec=spec, stored_bytes=2_500_000)
    page = developer.get(f"{AT}/{adapter.name}/compare", {"before": "9", "after": "3"})
    shown = text(page)
    assert "bytes 1.5 MB 2.5 MB" in shown
    assert "largest rank 4 8" in shown
    assert "r 4 8" in shown.split("PEFT config")[1]
    assert "3 differ, 1 are adapted alike." in shown
    assert "0.k_proj not adapted rank 8, scaling 2" in shown
    assert "0.v_proj rank 4, scaling 2 not adapted" in shown
    unread = text(developer.get(f"{AT}/{adapter.name}/compare", {"before": "1", "after": "2"}))
    assert "The config of one of them is not kept" in unread
    for wrong, said in (
        ("77", "There is no version"),
        ("x", "Enter a whole number"),
        ("", "required"),
        ("9" * 20, "no v"),
    ):
        refused = developer.get(f"{AT}/{adapter.name}/compare", {"before": wrong, "after": "1"})
        assert (refused.status_code, said in text(refused)) == (200, True), wrong


def test_where_a_version_lies(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    worker = house.worker("http://127.0.0.1:9", "w-seven")
    assert adapter.current is not None
    report = _stored(Report(running=0, waiting=0, kv_usage=0.0, slots=2, resident=(adapter.current.digest, "f" * 64)))
    WorkerSample.objects.create(worker=worker, at=timezone.now(), report=report)
    ledger.request(acme.key, timezone.now(), adapter_version=adapter.current)
    assert "w-seven" in text(developer.get(f"{AT}/{adapter.name}"))
    assert "Loaded on w-seven" in text(developer.get(f"{AT}/{adapter.name}/versions/2"))
    assert "no worker that is known of" in text(developer.get(f"{AT}/{adapter.name}/versions/1"))
    for change in ({"problem": "serves another model"}, {"problem": "", "at": timezone.now() - timedelta(minutes=5)}):
        WorkerSample.objects.update(**change)
        assert "w-seven" not in text(developer.get(f"{AT}/{adapter.name}"))
        assert "no worker that is known of" in text(developer.get(f"{AT}/{adapter.name}/versions/2"))


def test_what_is_in_use_is_not_deleted_and_says_by_whom(house: House, acme: Actor, developer: Client) -> None:
    adapter = two_versions(house, acme)
    friend = house.actor("friend").tenant
    adapter_shares.share(BY, acme.tenant, adapter.name, friend.pk)
    page = f"{AT}/{adapter.name}/delete"
    asked = text(developer.get(page))
    assert "3 versions go with it" in asked
    assert "It cannot be deleted now: shared with friend (take the shares back first)." in asked
    refused = developer.post(page, {"word": adapter.name})
    assert (refused.status_code, "is in use: shared with friend" in text(refused)) == (409, True)
    unsure = developer.post(page, {"word": "something"})
    assert f"Type {adapter.name} to go on." in text(unsure)
    version = text(developer.get(f"{AT}/{adapter.name}/versions/2/delete"))
    assert "stands for it (promote another version first)" in version
    assert developer.post(f"{AT}/{adapter.name}/versions/1/delete").status_code == 302
    adapter_shares.withdraw(BY, acme.tenant, adapter.name, friend.pk)
    assert developer.post(page, {"word": adapter.name})["Location"] == AT
    assert audited("adapter.deleted").subject == str(adapter)
    assert developer.get(f"{AT}/{adapter.name}").status_code == 404


# Shares ---------------------------------------------------------------------------------------------------------------


def test_a_share_is_made_and_taken_back(house: House, acme: Actor, developer: Client) -> None:
    adapter, friend = two_versions(house, acme), house.actor("friend").tenant
    owner = client_of(member(acme.tenant))
    page = f"{AT}/{adapter.name}/share"
    assert developer.get(page).status_code == 403
    assert "Only you may use it" in text(owner.get(f"{AT}/{adapter.name}/shares"))
    for wrong, said in (
        ("x", "This is no account"),
        (str(uuid4()), "There is no account"),
        (str(acme.tenant.pk), "is your own"),
        ("", "required"),
    ):
        answer = owner.post(page, {"account_id": wrong})
        assert (answer.status_code, said in text(answer)) == (400, True), wrong
    assert owner.post(page, {"account_id": str(friend.pk)}).status_code == 302
    assert "friend" in text(owner.get(f"{AT}/{adapter.name}/shares"))
    theirs = client_of(member(friend, Role.VIEWER))
    received = theirs.get("/console/t/friend/adapters/-/shared")
    assert f"{adapter} tiny yes" in text(received)
    assert str(friend.pk) in received.content.decode()
    assert theirs.get(f"/console/t/friend/adapters/{adapter.name}").status_code == 404
    back = f"{AT}/{adapter.name}/shares/{friend.pk}/withdraw"
    assert f'href="{back}"' in owner.get(f"{AT}/{adapter.name}/shares").content.decode()
    assert f"Take {adapter} back from friend?" in text(owner.get(back))
    assert owner.post(back).status_code == 302
    assert audited("adapter.share_withdrawn").subject == str(adapter)
    assert owner.get(back).status_code == 404


def test_viewers_see_and_change_nothing(house: House, acme: Actor) -> None:
    adapter = two_versions(house, acme)
    viewer = client_of(member(acme.tenant, Role.VIEWER))
    shown = viewer.get(f"{AT}/{adapter.name}").content.decode()
    for page in ("rollback", "canary", "delete", "versions/1/promote", "versions/1/delete", "automatic", "share"):
        assert viewer.get(f"{AT}/{adapter.name}/{page}").status_code == 403
        assert viewer.post(f"{AT}/{adapter.name}/{page}", {"word": adapter.name}).status_code == 403
        assert f'{adapter.name}/{page}"' not in shown
    assert releases.latest(adapter).version.number == 2
