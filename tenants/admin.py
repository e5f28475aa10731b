"""Django admin for operators: what there is, across tenants, without secrets and digests.

Nothing is changed here: commands and the API do that, through functions that the audit log hears of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth import admin as _registered  # noqa: F401  what is not there cannot be unregistered
from django.contrib.auth.models import Group, User
from django.db import models
from django.http import HttpRequest, HttpResponse

from tenants.models import (
    Account,
    Adapter,
    AdapterAllowance,
    AdapterVersion,
    ApiKey,
    AuditEntry,
    BaseModel,
    Denial,
    InferenceRequest,
    LedgerEntry,
    Member,
    ModelAllowance,
    Plan,
    Price,
    ReconciliationRun,
    Tenant,
    UsageHour,
)
from tenants.scope import unscoped_queries

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin  # generic in the type stubs only


class OperatorAdmin(ModelAdmin):
    """Base of every admin page here: unscoped on purpose, for superusers and staff with the permission only."""

    view_on_site = False

    def _unscoped_page(self, view: Callable[..., Any], *args: Any, **kwargs: Any) -> HttpResponse:
        with unscoped_queries():
            response: Any = view(*args, **kwargs)
            # querysets in a page's context are evaluated while it is rendered
            if hasattr(response, "render") and not response.is_rendered:
                response.render()
            return response  # type: ignore[no-any-return]

    def changelist_view(self, *args: Any, **kwargs: Any) -> Any:
        return self._unscoped_page(super().changelist_view, *args, **kwargs)

    def changeform_view(self, *args: Any, **kwargs: Any) -> Any:
        return self._unscoped_page(super().changeform_view, *args, **kwargs)

    def delete_view(self, *args: Any, **kwargs: Any) -> Any:
        return self._unscoped_page(super().delete_view, *args, **kwargs)

    def history_view(self, *args: Any, **kwargs: Any) -> Any:
        return self._unscoped_page(super().history_view, *args, **kwargs)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        with unscoped_queries():
            queryset: Any = super().get_queryset(request)
        return queryset.unscoped() if hasattr(queryset, "unscoped") else queryset  # type: ignore[no-any-return]


class ReadOnlyAdmin(OperatorAdmin):
    """Rows that the platform's own functions write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


# Django's own pages change people past the audit log and past the rule that a tenant keeps an owner.
admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(ReadOnlyAdmin):
    list_display = ("username", "email", "is_staff", "is_active", "last_login")
    list_filter = ("is_staff", "is_active")
    search_fields = ("username", "email")
    fields = ("username", "email", "is_staff", "is_superuser", "is_active", "date_joined", "last_login")


@admin.register(Plan)
class PlanAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "requests_per_minute",
        "tokens_per_minute",
        "max_concurrent",
        "tokens_per_month",
        "budget_hard",
    )


@admin.register(Tenant)
class TenantAdmin(ReadOnlyAdmin):
    list_display = ("slug", "display_name", "state", "plan", "created_at")
    list_filter = ("state", "plan")
    search_fields = ("slug", "display_name")


@admin.register(Member)
class MemberAdmin(ReadOnlyAdmin):
    list_display = ("user", "tenant", "role")
    list_filter = ("role",)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("public_id", "tenant", "name", "created_at", "expires_at", "revoked_at", "last_used_at")
    search_fields = ("public_id", "tenant__slug", "name")
    fields = ("tenant", "public_id", "name", "expires_at", "revoked_at", "created_at", "last_used_at")


@admin.register(BaseModel)
class BaseModelAdmin(ReadOnlyAdmin):
    list_display = ("name", "state", "context_length", "created_at")


@admin.register(ModelAllowance)
class ModelAllowanceAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "base_model", "created_at")


@admin.register(AdapterAllowance)
class AdapterAllowanceAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "adapter", "created_at")


@admin.register(Adapter)
class AdapterAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "base_model", "current", "created_at")
    list_select_related = ("tenant", "base_model", "current__adapter__tenant")
    search_fields = ("name", "tenant__slug")


@admin.register(AdapterVersion)
class AdapterVersionAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "state", "num_bytes", "created_at", "checked_at")
    list_filter = ("state",)
    list_select_related = ("adapter__tenant",)


@admin.register(InferenceRequest)
class InferenceRequestAdmin(ReadOnlyAdmin):
    list_display = ("id", "tenant", "state", "prompt_tokens", "max_tokens", "emitted_tokens", "admitted_at")
    list_filter = ("state",)
    list_select_related = ("tenant",)
    show_full_result_count = False


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = (
        "request_id",
        "tenant",
        "base_model",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "outcome",
        "created_at",
    )
    list_filter = ("outcome",)
    list_select_related = ("tenant", "base_model")
    show_full_result_count = False


@admin.register(Price)
class PriceAdmin(ReadOnlyAdmin):
    list_display = ("base_model", "plan", "input", "cached_input", "output", "valid_from")
    list_filter = ("base_model", "plan")
    list_select_related = ("base_model", "plan")


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "subject", "month_tokens", "month_cost", "held_tokens", "settled_count", "settled_cost")
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug", "subject")


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin):
    list_display = ("hour", "tenant", "key", "base_model", "adapter", "requests", "prompt_tokens", "completion_tokens")
    list_select_related = ("tenant", "key__tenant", "base_model", "adapter__tenant")
    show_full_result_count = False


@admin.register(Denial)
class DenialAdmin(ReadOnlyAdmin):
    """Why requests were refused."""

    list_display = ("hour", "tenant", "key", "code", "limit", "subject", "count", "last_message")
    list_filter = ("code", "limit")
    list_select_related = ("tenant", "key__tenant")
    search_fields = ("tenant__slug", "last_request_id")


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "tenant", "actor_kind", "actor_name", "action", "subject")
    list_filter = ("actor_kind",)
    list_select_related = ("tenant",)
    search_fields = ("subject", "actor_name")
    show_full_result_count = False


@admin.register(ReconciliationRun)
class ReconciliationRunAdmin(ReadOnlyAdmin):
    list_display = ("asked_at", "tenant", "asked_by", "state", "ok")
    list_filter = ("state", "ok")
