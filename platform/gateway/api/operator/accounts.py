from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from ninja import Schema

from gateway.api.callers import OperatorBearer, operator
from gateway.api.mutations import management_router
from gateway.api.pages import Page, Wanted, page
from tenants import accounts

router = management_router("operators: accounts", OperatorBearer())


class AccountObject(Schema):
    """A person's account, whatever tenants they belong to. ``active``: may sign in; ``operator``: runs the platform."""

    username: str
    object: Literal["account"] = "account"
    email: str
    active: bool
    operator: bool
    created_at: datetime
    last_sign_in_at: datetime | None


def _shown(user: Any) -> AccountObject:
    return AccountObject(
        username=user.username,
        email=user.email,
        active=user.is_active,
        operator=user.is_staff,
        created_at=user.date_joined,
        last_sign_in_at=user.last_login,
    )


@router.get("/api/operator/accounts", response=Page[AccountObject], summary="Everybody's accounts, by user name")
def list_accounts(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(get_user_model().objects.all(), window, _shown, name="username", order="username")


@router.get("/api/operator/accounts/{username}", response=AccountObject, summary="One account")
def get_account(request: HttpRequest, username: str) -> AccountObject:
    return _shown(accounts.find_account(username))


@router.post("/api/operator/accounts/{username}/switch-off", response=AccountObject, summary="Switch an account off")
def switch_account_off(request: HttpRequest, username: str) -> AccountObject:
    """Nobody signs in with it, its sessions end at once, and the keys of its memberships are revoked; these stay. 409
    for the last operator, and `last_owner` where a tenant would be left without one.
    """
    user = accounts.find_account(username)
    accounts.switch_off(operator(request).actor, user)
    return _shown(user)


@router.post("/api/operator/accounts/{username}/switch-on", response=AccountObject, summary="Let it sign in again")
def switch_account_on(request: HttpRequest, username: str) -> AccountObject:
    """Keys that were revoked stay so."""
    user = accounts.find_account(username)
    accounts.switch_on(operator(request).actor, user)
    return _shown(user)
