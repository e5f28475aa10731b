"""Sessions of people's browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.sessions.models import Session
from django.utils import timezone

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def end_sessions(user: User) -> None:
    """Delete all of a person's. Sessions do not say whose they are but inside: this reads all, as seldom as an account
    is switched off or loses its address.
    """
    name = str(user.pk)
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator():
        if session.get_decoded().get("_auth_user_id") == name:
            session.delete()
