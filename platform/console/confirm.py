from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.forms import Form
from console.place import Place
from console.render import render
from tenants.errors import Conflict, Invalid


def confirm(
    request: HttpRequest,
    place: Place,
    act: Callable[[], Any],
    *,
    title: str,
    effects: Sequence[str],
    button: str,
    done: str,
    back: str,
    word: str | None = None,
    form: Form | None = None,
) -> HttpResponse:
    """Ask before ``act``, and say what it will do; then go to ``back`` with the message ``done``.

    In a dialog where the page's script opened it (``data-dialog``), else as a page of its own.

    :param title: the question: "Revoke the key ci?". :param effects: what it affects, a sentence each, with numbers.
    :param word: what has to be typed first, for what cannot be undone and concerns many.
    :param form: what else is asked, such as a reason; bound where the question is answered, right before ``act`` runs.
    """
    problem, status = "", 200
    sent = request.method == "POST"
    wrong_word = sent and word is not None and request.POST.get("word", "").strip() != word
    if wrong_word:
        problem, status = f"Type {word} to go on.", 400
    elif sent and (form is None or form.is_valid()):
        try:
            with transaction.atomic():
                act()
        except (Conflict, Invalid) as error:
            problem, status = str(error), 409 if isinstance(error, Conflict) else 400
        else:
            messages.success(request, done)
            return HttpResponseRedirect(back)
    asked: dict[str, Any] = {"title": title, "effects": effects, "button": button, "back": back, "word": word}
    asked |= {"problem": problem, "wrong_word": wrong_word, "form": form}
    return render(request, place, "console/confirm.html", asked, status=status)
