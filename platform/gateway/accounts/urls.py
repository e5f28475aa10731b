from __future__ import annotations

from django.urls import path

from gateway.accounts import joining, views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("sign-in", views.enter, name="sign-in"),
    path("sign-out", views.leave, name="sign-out"),
    path("password", views.password, name="password"),
    path("passwords/<name>/<token>", views.first_password, name="first-password"),
    path("invitation", joining.invitation, name="invitation"),
    path("invitations/<token>", joining.open_link, name="invitation-link"),
    path("oidc", joining.to_provider, name="oidc"),
    path("oidc/callback", joining.from_provider, name="oidc-callback"),
]
