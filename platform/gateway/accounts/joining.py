"""Accepting an invitation, and signing in through the provider, which may be the way to accept one."""

from __future__ import annotations

import logging
from typing import cast

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from console.forms import posted
from gateway.accounts import oidc
from gateway.accounts.forms import NewPassword
from gateway.accounts.views import next_of, welcome
from tenants import identities, invitations, proofs
from tenants.addresses import address_of
from tenants.errors import Conflict, Forbidden, NotFound, TenantsError
from tenants.links import address_of_page
from tenants.models import Invitation

logger = logging.getLogger(__name__)

_INVITATION = "invitation"
"""Where the session keeps the hash of an invitation's token."""

_MAILED = "invitation_mailed"
"""And whether its link came by mail."""

_NEXT = "provider_next"
"""And where to go on once the provider has said who somebody is."""

PAGE = "/accounts/invitation"
CALLBACK = "/accounts/oidc/callback"

VISIT_SECONDS = 3600
"""For which a visitor who goes to the provider is remembered: as long as the provider's answer is good for."""


@never_cache
@require_safe
def open_link(request: HttpRequest, token: str) -> HttpResponse:
    """The link itself: the token goes no further than here, so that the page's own address can be shown to anybody."""
    plain, mailed = proofs.opened(token)
    try:
        invitation = invitations.of_token(plain)
    except NotFound:
        return _gone(request)
    request.session[_INVITATION] = bytes(invitation.digest).hex()
    request.session[_MAILED] = mailed
    return HttpResponseRedirect(PAGE)


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def invitation(request: HttpRequest) -> HttpResponse:
    """Accept, signed in or with a new password."""
    try:
        found = _invitation(request)
    except NotFound:
        return _gone(request)
    if request.user.is_authenticated:
        return _accept_signed_in(request, found)
    return _accept_with_password(request, found)


def _invitation(request: HttpRequest) -> Invitation:
    digest = request.session.get(_INVITATION)
    if digest is None:
        raise NotFound("open invitation", "…")
    return invitations.of_digest(bytes.fromhex(digest))


def _mailed(request: HttpRequest) -> bool:
    return request.session.get(_MAILED) is True


def _accept_signed_in(request: HttpRequest, found: Invitation) -> HttpResponse:
    user = cast(User, request.user)
    problem, status = "", 200
    if request.method == "POST":
        try:
            invitations.accept(found, user, address_of(request), mailed=_mailed(request))
        except NotFound:
            return _gone(request)
        except (Forbidden, Conflict) as error:
            problem, status = str(error), 403 if isinstance(error, Forbidden) else 409
        else:
            return _joined(request)
    other = user.email.lower() != found.email
    context = {"invitation": found, "problem": problem, "other": other}
    return render(request, "accounts/invitation.html", context, status=status)


def _accept_with_password(request: HttpRequest, found: Invitation) -> HttpResponse:
    mailed = _mailed(request)
    # Whoever was shown the link may be anybody, and is not told whether the address has an account.
    known = mailed and invitations.is_taken(found.email, proven=True)
    claimed = mailed and not known and invitations.is_taken(found.email, proven=False)
    user = User(username=found.email, email=found.email)
    form = NewPassword(posted(request), user=user)
    status = 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                made, _ = invitations.accept_with_password(
                    found, form.cleaned_data["password"], address_of(request), mailed=mailed
                )
            except NotFound:
                return _gone(request)
            except ValidationError as error:
                form.add_error("password", error)
            except Conflict as error:
                form.add_error(None, str(error))
                known, status = True, 409
            else:
                welcome(request, made)
                return _joined(request)
    shown = {"invitation": found, "form": form, "known": known, "claimed": claimed}
    context = {**shown, "provider": settings.OIDC, "page": PAGE}
    return render(request, "accounts/invitation.html", context, status=status)


def _joined(request: HttpRequest) -> HttpResponse:
    request.session.pop(_INVITATION, None)
    request.session.pop(_MAILED, None)
    return HttpResponseRedirect(settings.LOGIN_REDIRECT_URL)


def _gone(request: HttpRequest) -> HttpResponse:
    text = "It was used, taken back or is too old. Ask whoever sent it for a new one."
    return render(request, "accounts/message.html", {"title": "No open invitation", "text": text}, status=404)


@never_cache
@require_safe
def to_provider(request: HttpRequest) -> HttpResponse:
    """``next`` as on the sign-in page."""
    client = oidc.client()
    if client is None:
        raise Http404
    request.session[_NEXT] = next_of(request)
    if not request.user.is_authenticated:  # anybody may come by here, again and again, and each time leaves a row
        request.session.set_expiry(VISIT_SECONDS)
    try:
        return client.begin(request, address_of_page(CALLBACK, request))
    except oidc.Untrusted as error:
        logger.error("sign-in through the provider: %s", error)
        return _no_provider(request)


@never_cache
@require_safe
def from_provider(request: HttpRequest) -> HttpResponse:
    """Opens the account that the identity was linked with; or, with an invitation, makes one."""
    client = oidc.client()
    if client is None:
        raise Http404
    try:
        person = client.finish(request)
    except oidc.Untrusted as error:
        logger.warning("refused sign-in through the provider from %s: %s", address_of(request), error)
        return _no_provider(request)
    try:
        user, joined = _account(request, person)
    except TenantsError as error:
        text = str(error) if isinstance(error, Conflict | Forbidden) else _STRANGER.format(email=person.email)
        context = {"title": "You cannot come in", "text": text}
        return render(request, "accounts/message.html", context, status=403)
    invited, target = _INVITATION in request.session, request.session.pop(_NEXT, settings.LOGIN_REDIRECT_URL)
    welcome(request, user)
    if joined:
        return _joined(request)
    return HttpResponseRedirect(PAGE if invited else target)


_STRANGER = "{email} has no account here. Ask an owner of yours for an invitation, and open its link first."


def _account(request: HttpRequest, person: oidc.Person) -> tuple[User, bool]:
    """The person's account, and whether it has just joined a tenant."""
    try:
        return identities.user_of(person.issuer, person.subject, person.email), False
    except NotFound:
        found = _invitation(request)
    user, _ = identities.accept_with_identity(found, person.issuer, person.subject, person.email, address_of(request))
    return user, True


def _no_provider(request: HttpRequest) -> HttpResponse:
    context = {"title": "Sign-in did not succeed", "text": "The provider's answer was not accepted. Try again."}
    return render(request, "accounts/message.html", context, status=400)
