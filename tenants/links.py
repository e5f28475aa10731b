"""Addresses of pages, for people to open, and mail that carries them."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from smtplib import SMTPException

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.core.mail import send_mail
from django.db import transaction
from django.http import HttpRequest
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from tenants import proofs
from tenants.keys import Secret
from tenants.models import Invitation

logger = logging.getLogger(__name__)

_TEXT = """You are invited to {tenant} as {role}. Open this link to accept; it is good for seven days, once:

{link}

If you did not expect it, do nothing.
"""


def address_of_page(path: str, request: HttpRequest | None = None) -> str:
    """The whole address: ``LORAPLEX_PUBLIC_URL``, else the host that ``request`` asked, else where ``up`` serves, else
    this machine's.

    A link for somebody else is never made of a ``request``: whoever asks chooses its ``Host``, port included.
    """
    if settings.PUBLIC_URL is not None:
        return f"{settings.PUBLIC_URL}{path}"
    if request is not None:
        return request.build_absolute_uri(path)
    with suppress(OSError):
        return f"{_address_file().read_text().strip()}{path}"
    return f"http://127.0.0.1:{settings.PORT}{path}"


def remember_address(url: str) -> None:
    """That the gateway of this data directory serves at ``url``: ``PORT`` may be in the environment of ``up`` alone."""
    draft = _address_file().with_name(f".address.{os.getpid()}")
    draft.write_text(f"{url}\n")
    draft.replace(_address_file())


def forget_address() -> None:
    _address_file().unlink(missing_ok=True)


def _address_file() -> Path:
    return Path(settings.DATA_DIR) / "address"


def invitation_link(token: Secret) -> Secret:
    return Secret(address_of_page(f"/accounts/invitations/{token.reveal()}"))


def password_link(user: User) -> Secret:
    """Sets the account's password once. Void after three days, after use, and after the user signs in."""
    name = urlsafe_base64_encode(force_bytes(user.pk))
    return Secret(address_of_page(f"/accounts/passwords/{name}/{default_token_generator.make_token(user)}"))


def announce(invitation: Invitation, token: Secret) -> None:
    """Mail the link once the invitation is committed, where there is a mail server. This link, unlike a shown one,
    proves the address of whoever opens it. A mail that fails is logged: invite again.
    """
    if not settings.MAIL:
        return
    link = invitation_link(Secret(proofs.mailed(token.reveal())))
    text = _TEXT.format(tenant=_line(invitation.tenant.display_name), role=invitation.role, link=link.reveal())

    def send() -> None:
        try:
            send_mail(f"Invitation to {_line(invitation.tenant.display_name)}", text, None, [invitation.email])
        except (SMTPException, OSError) as error:
            logger.error("invitation %s could not be mailed: %s", invitation.pk, error)

    transaction.on_commit(send)


def deliver(invitation: Invitation, token: Secret) -> Secret | None:
    """The link that whoever invites is to hand on, shown once; ``None`` where it was mailed, since only a link that
    nobody else saw proves the address.
    """
    announce(invitation, token)
    return None if settings.MAIL else invitation_link(token)


def _line(text: str) -> str:
    """On one line: a header's value has no other, and in a mail's body only we begin a new one."""
    return " ".join(text.split())
