"""The operators' admin: every page opens, across tenants, and shows no secret."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tenants.models import InferenceRequest, LedgerEntry

MODELS = list(admin.site._registry)


@pytest.fixture
def actor(world: Any) -> Any:
    """An actor, and one row of everything."""
    actor = world.actor("acme")
    version = world.adapter(actor.tenant, "pirate").current
    common = {
        "tenant": actor.tenant,
        "key": actor.key,
        "base_model": world.base,
        "adapter_version": version,
        "prompt_tokens": 5,
    }
    now = timezone.now()
    request = InferenceRequest.objects.create(**common, max_tokens=1, admitted_at=now, lease_expires_at=now)
    LedgerEntry.objects.create(
        **common, request=request, cached_tokens=0, completion_tokens=1, admitted_at=now, created_at=now
    )
    return actor


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_every_page_opens(model: Any, actor: Any, admin_client: Client) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    page = admin_client.get(reverse(f"{name}_changelist"), {"q": "a"})
    assert page.status_code == 200
    queryset = model._base_manager.all()
    texts = [page.content.decode()]
    for row in queryset:
        for view in ("change", "history"):
            page = admin_client.get(reverse(f"{name}_{view}", args=[row.pk]))
            assert page.status_code == 200
            texts.append(page.content.decode())
    if model._meta.model_name not in ("adapter", "adapterversion"):
        assert not any(bytes(actor.key.digest).hex() in text or actor.secret in text for text in texts)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_nothing_is_changed_past_the_audit_log(model: Any, actor: Any, admin_client: Client) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    for method in (admin_client.get, admin_client.post):
        assert method(reverse(f"{name}_add")).status_code == 403
    for row in model._base_manager.all():
        for view in ("change", "delete"):
            assert admin_client.post(reverse(f"{name}_{view}", args=[row.pk]), {"post": "yes"}).status_code == 403
    keys = [str(row.pk) for row in model._base_manager.all()]
    chosen = {"action": "delete_selected", "_selected_action": keys, "post": "yes"}
    admin_client.post(reverse(f"{name}_changelist"), chosen)
    assert model._base_manager.count() == len(keys)
    actor.tenant.refresh_from_db()
    actor.key.refresh_from_db()
    assert (actor.tenant.state, actor.key.revoked_at) == ("active", None)


def test_people_are_shown_and_groups_do_not_exist(admin_client: Client) -> None:
    assert User in MODELS
    assert Group not in MODELS
    chosen = User.objects.get()
    for path in ("add/", f"{chosen.pk}/change/", f"{chosen.pk}/delete/", f"{chosen.pk}/password/"):
        answer = admin_client.post(f"/admin/auth/user/{path}", {"username": "eve", "is_staff": "on"})
        assert answer.status_code in {302, 403, 404}, path  # 302: there is no such page, the admin's catch-all answers
    assert list(User.objects.values_list("username", "is_active")) == [(chosen.username, True)]


def test_strangers_get_nowhere(actor: Any, client: Client) -> None:
    page = client.get(reverse("admin:tenants_ledgerentry_changelist"))
    assert page.status_code == 302
