from __future__ import annotations

from django.urls import path
from django.views.generic import RedirectView

from console.home import home
from console.serving import urlpatterns as pages

app_name = "console"
_overview = RedirectView.as_view(pattern_name="console:tenant-overview")
urlpatterns = [path("", home, name="home"), path("t/<slug:tenant>/", _overview), *pages()]
