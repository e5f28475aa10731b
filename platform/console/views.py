from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@never_cache
@require_safe
def chat(request: HttpRequest) -> HttpResponse:
    """The chat page. It knows nothing of the visitor: the key is typed in and stays in the page's memory."""
    return render(request, "console/chat.html")
