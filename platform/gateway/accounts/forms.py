from __future__ import annotations

from django import forms
from django.contrib.auth import password_validation
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

LONGEST_PASSWORD = 1000


def _password(label: str, *, new: bool) -> forms.CharField:
    kind = "new-password" if new else "current-password"
    return forms.CharField(
        label=label,
        max_length=LONGEST_PASSWORD,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": kind, "required": True}),
    )


class SignIn(forms.Form):
    username = forms.CharField(
        label="E-mail address or user name",
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True, "required": True}),
    )
    password = _password("Password", new=False)


class NewPassword(forms.Form):
    """A password that somebody chooses, twice; ``user`` is whose it will be."""

    password = _password("New password", new=True)
    again = _password("The same again", new=True)

    def __init__(self, *args: object, user: User, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.user = user

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        password_validation.validate_password(password, self.user)
        return password

    def clean(self) -> None:
        first, second = self.cleaned_data.get("password"), self.cleaned_data.get("again")
        if first and second and first != second:
            self.add_error("again", ValidationError("This is not the same password."))


class ChangedPassword(NewPassword):
    old = _password("Your password now", new=False)
    field_order = ("old", "password", "again")

    def clean_old(self) -> str:
        old: str = self.cleaned_data["old"]
        if not self.user.check_password(old):
            raise ValidationError("This is not your password.")
        return old
