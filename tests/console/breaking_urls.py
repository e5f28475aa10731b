"""The project's addresses, and one whose page fails."""

from __future__ import annotations

from typing import Any

from django.urls import path

from gateway import urls


def _breaks(request: Any) -> Any:
    raise RuntimeError("secret words")


handler500 = urls.handler500
urlpatterns = [path("console/breaks", _breaks), *urls.urlpatterns]
