from __future__ import annotations

from django.contrib import admin
from django.urls import path

from console.views import chat
from gateway.api import api

urlpatterns = [
    path("", chat, name="chat"),
    path("admin/", admin.site.urls),
    path("", api.urls),
]
