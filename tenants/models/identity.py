from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models


class Identity(models.Model):
    """Whom an identity provider means. The pair is the whole identity: an e-mail address never leads to an account."""

    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "identities"
        constraints: ClassVar = [models.UniqueConstraint(fields=("issuer", "subject"), name="identity_once")]

    def __str__(self) -> str:
        return f"{self.subject} at {self.issuer}"


class SignInTries(models.Model):
    """How many tries to sign in are left to an account or an address; written by :mod:`tenants.sign_in`.

    Rows without interest (full again) are deleted along the way.
    """

    subject = models.CharField(primary_key=True, max_length=80, help_text="account:<hash> or address:<network>")
    left = models.FloatField(help_text="tries left at the time at")
    at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name_plural = "sign-in tries"

    def __str__(self) -> str:
        return self.subject
