"""Django admin for operators: what there is. Changes go through commands and the API, which the audit log hears of."""

from __future__ import annotations

from django.contrib import admin

from fleet.models import PublicPrefix, Worker, WorkerSample
from tenants.admin import ReadOnlyAdmin


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("name", "url", "base_model", "dialect", "state")
    list_filter = ("state", "dialect")
    list_select_related = ("base_model",)


@admin.register(WorkerSample)
class WorkerSampleAdmin(ReadOnlyAdmin):
    list_display = ("at", "worker", "problem")
    list_select_related = ("worker",)
    show_full_result_count = False


@admin.register(PublicPrefix)
class PublicPrefixAdmin(ReadOnlyAdmin):
    list_display = ("name", "base_model", "adapter", "created_at")
    list_select_related = ("base_model", "adapter__tenant")
