from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from console.views import chat
from gateway.api import api

handler400 = "gateway.error_pages.bad_request"
handler403 = "gateway.error_pages.forbidden"
handler404 = "gateway.error_pages.not_found"
handler500 = "gateway.error_pages.server_error"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="console:home")),
    path("chat", chat, name="chat"),
    path("console/", include("console.urls")),
    path("accounts/", include(("gateway.accounts.urls", "accounts"))),
    # Tries are counted, and changes recorded, on one page only.
    path("admin/login/", RedirectView.as_view(pattern_name="accounts:sign-in", query_string=True)),
    path("admin/password_change/", RedirectView.as_view(pattern_name="accounts:password")),
    path("admin/", admin.site.urls),
    path("", api.urls),
]
