"""Signing in and out, and passwords. Everything is a page of the server's own; no script is needed."""

from __future__ import annotations

import logging
import math
from typing import cast

from django.conf import settings
from django.contrib.auth import authenticate, get_user_model, login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme, urlsafe_base64_decode
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.forms import posted
from console.signing_in import to_sign_in
from gateway.accounts.forms import ChangedPassword, NewPassword, SignIn
from tenants import audit, proofs, sign_in
from tenants.actors import Actor
from tenants.addresses import address_of
from tenants.models import Member

logger = logging.getLogger(__name__)

BACKEND = "django.contrib.auth.backends.ModelBackend"
DEVICE = "device"
"""The cookie of a browser in which somebody signed in."""


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def enter(request: HttpRequest) -> HttpResponse:
    """``next`` says where to go on; only pages of this host are gone to. ``unsent``: a form was sent in vain."""
    form = SignIn(posted(request))
    target = next_of(request)
    unsent = "unsent" in (request.POST if request.method == "POST" else request.GET)
    status = 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                user = _user(request, form.cleaned_data["username"], form.cleaned_data["password"])
            except sign_in.TooManyTries as error:
                return _too_many(request, error)
            if user is not None:
                welcome(request, user)
                return _remembered(HttpResponseRedirect(target), user)
            form.add_error(None, "No account has this name and password.")
    context = {"form": form, "next": target, "unsent": unsent, "provider": settings.OIDC}
    return render(request, "accounts/sign_in.html", context, status=status)


def _user(request: HttpRequest, name: str, password: str) -> User | None:
    """Takes as long for an account that does not exist. Raises :class:`~tenants.sign_in.TooManyTries`."""
    address, username = address_of(request), _username(name)
    device = sign_in.device_of(username, request.COOKIES.get(DEVICE))
    sign_in.take_try(username, address, device)
    user = authenticate(request, username=username, password=password)
    if user is None:
        logger.warning("refused sign-in from %s", address)
        return None
    sign_in.forget_tries(username, address, device)
    return user


def _username(name: str) -> str:
    """Of whoever has this name, or else this address for their own: most people's name is the address that they were
    invited at, which may be another one by now.
    """
    if "@" not in name or get_user_model().objects.filter(username=name).exists():
        return name
    name = name.lower()
    if get_user_model().objects.filter(username=name).exists():
        return name
    owner = proofs.owner(name)
    return name if owner is None else str(owner.get_username())


def _remembered(response: HttpResponse, user: User) -> HttpResponse:
    """So that others who guess cannot keep this browser from trying."""
    response.set_cookie(
        DEVICE,
        sign_in.device_cookie(user.get_username()),
        max_age=sign_in.DEVICE_SECONDS,
        path=settings.LOGIN_URL,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
    return response


def welcome(request: HttpRequest, user: User) -> None:
    """Sign in somebody who proved who they are."""
    login(request, user, backend=BACKEND)
    request.session.set_expiry(None)  # the usual: before, it may have been a visitor's short one
    actor = Actor("operator" if user.is_staff else "member", str(user), address_of(request))
    audit.record(actor, "account.signed_in", str(user), tenant=None)


def next_of(request: HttpRequest) -> str:
    """Where to go on after signing in: ``next`` as far as it is a page of this host."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    if url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure()):
        return wanted
    return str(settings.LOGIN_REDIRECT_URL)


def _too_many(request: HttpRequest, error: sign_in.TooManyTries) -> HttpResponse:
    seconds = max(1, math.ceil(error.retry_after))
    context = {"title": "Too many tries", "text": f"Try again in {math.ceil(seconds / 60)} min."}
    response = render(request, "accounts/message.html", context, status=429)
    response["Retry-After"] = str(seconds)
    return response


@never_cache
@require_POST
def leave(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponseRedirect(settings.LOGIN_URL)


@never_cache
@login_required
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """Who is signed in, and what they belong to."""
    user = cast(User, request.user)
    members = Member.objects.unscoped().select_related("tenant").filter(user=user).order_by("tenant__slug")
    return render(request, "accounts/overview.html", {"members": members, "own_password": user.has_usable_password()})


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """Whoever changes it stays signed in here, and is signed out everywhere else."""
    if not request.user.is_authenticated:
        return to_sign_in(request)
    user = request.user
    if not user.has_usable_password():
        context = {"title": "No password", "text": "This account signs in through its provider."}
        return render(request, "accounts/message.html", context, status=404)
    if request.method != "POST":
        return render(request, "accounts/password.html", {"form": ChangedPassword(user=user)})
    try:
        sign_in.take_change(user.get_username())
    except sign_in.TooManyTries as error:
        return _too_many(request, error)
    form = ChangedPassword(request.POST, user=user)
    if not form.is_valid():
        return render(request, "accounts/password.html", {"form": form}, status=400)
    sign_in.forget_tries(user.get_username(), address_of(request))
    _set_password(request, user, form.cleaned_data["password"])
    update_session_auth_hash(request, user)
    return HttpResponseRedirect(settings.LOGIN_REDIRECT_URL)


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def first_password(request: HttpRequest, name: str, token: str) -> HttpResponse:
    """Behind a link that an operator made for the account: see :func:`tenants.links.password_link`."""
    user = _named(name)
    if user is None or not user.is_active or not default_token_generator.check_token(user, token):
        context = {"title": "This link is no longer good", "text": "Ask for a new one."}
        return render(request, "accounts/message.html", context, status=404)
    form = NewPassword(posted(request), user=user)
    if request.method == "POST" and form.is_valid():
        _set_password(request, user, form.cleaned_data["password"])
        sign_in.forget_tries(user.get_username(), address_of(request))
        return HttpResponseRedirect(settings.LOGIN_URL)
    status = 400 if request.method == "POST" else 200
    return render(request, "accounts/password.html", {"form": form, "username": user.get_username()}, status=status)


def _named(name: str) -> User | None:
    try:
        return get_user_model().objects.filter(pk=urlsafe_base64_decode(name).decode()).first()
    except (ValueError, OverflowError, ValidationError):
        return None


def _set_password(request: HttpRequest, user: User, chosen: str) -> None:
    user.set_password(chosen)
    user.save(update_fields=["password"])
    actor = Actor("operator" if user.is_staff else "member", str(user), address_of(request))
    audit.record(actor, "account.password_changed", str(user), tenant=None)
