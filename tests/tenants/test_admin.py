"""The operators' admin: every page opens, across tenants, and shows no secret."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tenants.models import InferenceRequest, LedgerEntry

MODELS = [model for model in apps.get_app_config("tenants").get_models() if model in admin.site._registry]


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


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_page_opens(model: Any, actor: Any, admin_client: Client) -> None:
    name = f"admin:tenants_{model._meta.model_name}"
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


def test_a_tenant_can_be_changed(actor: Any, admin_client: Client) -> None:
    url = reverse("admin:tenants_tenant_change", args=[actor.tenant.pk])
    fields = {"slug": "acme", "display_name": "New", "state": "suspended", "plan": actor.tenant.plan_id, "weight": 2}
    assert admin_client.post(url, fields).status_code == 302
    actor.tenant.refresh_from_db()
    assert (actor.tenant.display_name, actor.tenant.state) == ("New", "suspended")


def test_a_key_can_be_revoked_and_not_made(actor: Any, admin_client: Client) -> None:
    url = reverse("admin:tenants_apikey_change", args=[actor.key.pk])
    assert (
        admin_client.post(url, {"name": "x", "revoked_at_0": "2030-01-01", "revoked_at_1": "00:00"}).status_code == 302
    )
    actor.key.refresh_from_db()
    assert actor.key.revoked_at is not None
    assert admin_client.get(reverse("admin:tenants_apikey_add")).status_code == 403


@pytest.mark.parametrize("model", [LedgerEntry, InferenceRequest])
def test_the_ledger_is_only_read(model: Any, actor: Any, admin_client: Client) -> None:
    name = f"admin:tenants_{model._meta.model_name}"
    [row] = model.objects.unscoped()
    assert admin_client.get(reverse(f"{name}_add")).status_code == 403
    assert admin_client.post(reverse(f"{name}_change", args=[row.pk]), {"prompt_tokens": 0}).status_code == 403
    assert admin_client.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403


def test_strangers_get_nowhere(actor: Any, client: Client) -> None:
    page = client.get(reverse("admin:tenants_ledgerentry_changelist"))
    assert page.status_code == 302
