"""What every management command here has in common: ``--json``, an example in its help, one sentence on failure."""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping
from typing import Any, ClassVar

import psycopg
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from inference.errors import InferenceError
from tenants import keys
from tenants.errors import Invalid, InvalidKey, NotConfigured, TenantsError
from tenants.models import ApiKey, BaseModel, Member, Plan, Tenant


class JsonCommand(BaseCommand):
    """A command that does one thing and says what came of it, to people or (``--json``) to programs.

    Subclasses write :meth:`run`, which returns what ``--json`` prints, and :meth:`describe`, which words it for people.
    """

    example: ClassVar[str]
    called: ClassVar[Mapping[str, str]] = {}
    """Arguments that are called otherwise here than the ``param`` of an :class:`~tenants.errors.Invalid`."""
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=f"example:\n  {self.example}",
            formatter_class=RawDescriptionHelpFormatter,
            **kwargs,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def describe(self, result: dict[str, Any]) -> str:
        raise NotImplementedError

    def problem(self, result: dict[str, Any]) -> str | None:
        """Why the exit status is not zero although there is a result to print; ``None``: it is."""
        return None

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            result = self.run(options)
        except Invalid as error:
            raise CommandError(self._as_called(error)) from error
        except (TenantsError, InferenceError) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError(_worded(error)) from error
        except (DatabaseError, psycopg.Error) as error:  # psycopg's own: of commands with a pool
            raise CommandError(_refusal(error)) from error
        self.stdout.write(json.dumps(result) if options["json"] else self.describe(result))
        problem = self.problem(result)
        if problem is not None:
            raise CommandError(problem)

    def _as_called(self, error: Invalid) -> str:
        name, words = self.called.get(error.param), str(error)
        return words if name is None or not words.startswith(error.param) else name + words.removeprefix(error.param)


def _refusal(error: DatabaseError | psycopg.Error) -> str:
    words = str(error).strip().splitlines()[0]
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.OperationalError) and cause.sqlstate is None:  # no server said anything
        remedy = "`manage.py up` starts it" if settings.EMBEDDED_POSTGRES else "DATABASE_URL says where it is"
        return f"PostgreSQL does not answer; {remedy}: {words}"
    return f"The database refused: {words}"


def _worded(error: ValidationError) -> str:
    if hasattr(error, "error_dict"):
        return "; ".join(f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items())
    return " ".join(error.messages)


def add_subject(parser: CommandParser, name: str, explanation: str) -> None:
    """The command's main argument, by position or as ``--name``; read it with :func:`subject`."""
    parser.add_argument(f"{name}_by_position", nargs="?", metavar=name, help=explanation)
    parser.add_argument(f"--{name}", metavar=name.upper(), help=f"the same, by name: {explanation}")


def subject(options: dict[str, Any], name: str) -> str:
    given = _given(options, name)
    if given is None:
        raise CommandError(f"Say one {name}.")
    return given


def only_tenant(options: dict[str, Any]) -> Tenant | None:
    """The tenant to which a command keeps whose :func:`add_subject` may be left out; ``None``: everybody."""
    slug = _given(options, "tenant")
    return None if slug is None else find_tenant(slug)


def _given(options: dict[str, Any], name: str) -> str | None:
    given = {value for value in (options[f"{name}_by_position"], options[name]) if value is not None}
    if len(given) > 1:
        raise CommandError(f"Two different values for {name}.")
    return str(given.pop()) if given else None


def find_tenant(slug: str) -> Tenant:
    tenant = Tenant.objects.select_related("plan").filter(slug=slug).first()
    if tenant is None:
        raise NotConfigured(f"There is no tenant {slug!r}.")
    return tenant


def find_base_model(name: str) -> BaseModel:
    model = BaseModel.objects.filter(name=name).first()
    if model is None:
        known = ", ".join(BaseModel.objects.values_list("name", flat=True)) or "none"
        raise NotConfigured(f"There is no base model {name!r}; registered: {known}.")
    return model


def find_key(tenant: Tenant, text: str) -> ApiKey:
    """By public id or by the whole key."""
    key: ApiKey | None = ApiKey.objects.filter(tenant=tenant, public_id=key_id(text)).first()
    if key is None:
        raise NotConfigured(f"{tenant} has no key {named_key(text)}; `keys {tenant} --all` lists them.")
    return key


def key_id(text: str) -> str:
    """The public id of the whole key ``text``, or ``text``, which may be one."""
    try:
        return keys.parse(text).public_id
    except InvalidKey:
        return text


def named_key(text: str) -> str:
    """What was looked for, to be shown: never a secret, not even of a key that was mistyped."""
    public_id = key_id(text)
    return "by this text, nor is it a whole key" if public_id.startswith("lpx_") else repr(public_id[:100])


def find_member(tenant: Tenant, username: str) -> Member:
    member: Member | None = Member.objects.filter(tenant=tenant, user__username=username).first()
    if member is None:
        raise NotConfigured(f"{tenant} has no member {username!r}.")
    return member


def find_plan(name: str) -> Plan:
    if name == Plan.STANDARD:
        return Plan.standard()
    plan = Plan.objects.filter(name=name).first()
    if plan is None:
        raise NotConfigured(f"There is no plan {name!r}.")
    return plan
