from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from fleet.models import Worker

if TYPE_CHECKING:
    WorkerModelAdmin = admin.ModelAdmin[Worker]
else:
    WorkerModelAdmin = admin.ModelAdmin


@admin.register(Worker)
class WorkerAdmin(WorkerModelAdmin):
    list_display = ("name", "url", "base_model", "dialect", "state")
    list_filter = ("state", "dialect")
