"""Options of a command line, each standing once, as a field of a dataclass.

From the fields come the parser, the checks of ranges, the arguments that hand options on to another process, and the
table in the documentation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any

from inference.errors import ConfigError


def option(
    help_text: str,
    *,
    kind: Callable[[str], Any] = str,
    default: Any = MISSING,
    least: int | None = None,
    most: int | None = None,
    choices: Sequence[str] | None = None,
    repeated: bool = False,
) -> Any:
    """One option as a field: ``some_name`` is ``--some-name``; without a default it has to be given.

    :param help_text: says what the default is where that is no constant.
    :param least: smallest number that is accepted; ``most``: the largest.
    :param repeated: may be given several times; the field is a tuple.
    """
    metadata = {
        "help": help_text,
        "kind": kind,
        "least": least,
        "most": most,
        "choices": choices,
        "repeated": repeated,
    }
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def flag(each: Field[Any]) -> str:
    return f"--{each.name.replace('_', '-')}"


def add_options(
    parser: argparse._ActionsContainer, config: type, *, without: Collection[str] = (), only_given: bool = False
) -> None:
    """Every field as an option of ``parser``.

    :param without: names of fields that are left out.
    :param only_given: options that are not given are absent from the result, for :func:`arguments`.
    """
    for each in _fields(config):
        if each.name in without:
            continue
        default, required, help_text = _default(each), _is_required(each), _help(each)
        if only_given:
            default, required = argparse.SUPPRESS, False
        if each.metadata["kind"] is bool:
            parser.add_argument(flag(each), action="store_true", default=default, help=help_text)
            continue
        how: dict[str, Any] = {"action": _Gather} if each.metadata["repeated"] else {"required": required}
        how["type"] = _path if each.metadata["kind"] is Path else each.metadata["kind"]
        parser.add_argument(
            flag(each),
            choices=each.metadata["choices"],
            help=help_text,
            **how,
            **({} if required else {"default": default}),
        )


def check_ranges(config: type, values: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` naming the first option whose number is out of its range."""
    for each in _fields(config):
        value, least, most = values.get(each.name), each.metadata["least"], each.metadata["most"]
        if value is None:
            continue
        if least is not None and value < least:
            raise ConfigError(f"{flag(each)} must be at least {least}")
        if most is not None and value > most:
            raise ConfigError(f"{flag(each)} must be at most {most}")


def arguments(config: type, given: Mapping[str, Any]) -> list[str]:
    """The command line that gives those of the fields that ``given`` holds."""
    parts: list[str] = []
    for each in _fields(config):
        if each.name not in given:
            continue
        value = given[each.name]
        if each.metadata["kind"] is bool:
            parts += [flag(each)] if value else []
        else:
            parts += [f"{flag(each)}={one}" for one in (value if each.metadata["repeated"] else (value,))]
    return parts


def table(config: type) -> str:
    """Markdown: a row a field. ``—`` as a default: the text says what happens."""
    rows = ["| Option | Default | Meaning |", "|---|---|---|"]
    for each in _fields(config):
        default = _default(each)
        shown = "—" if default in (None, ()) else f"`{default}`"
        if _is_required(each):
            shown = "required"
        elif each.metadata["kind"] is bool:
            shown = "off"
        elif each.default is MISSING:  # differs from machine to machine
            shown = "—"
        meaning = each.metadata["help"]
        if each.metadata["choices"]:
            meaning += f"; one of {', '.join(f'`{name}`' for name in each.metadata['choices'])}"
        if each.metadata["repeated"]:
            meaning += "; may be given several times"
        rows.append(f"| `{flag(each)}` | {shown} | {meaning} |")
    return "\n".join(rows)


def _fields(config: type) -> Iterator[Field[Any]]:
    yield from fields(config)


def _is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _default(each: Field[Any]) -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return None if each.default is MISSING else each.default


def _help(each: Field[Any]) -> str:
    """For argparse, with what holds when the option is not given."""
    text, default = str(each.metadata["help"]), _default(each)
    if _is_required(each):
        text += " (required)"
    elif each.metadata["kind"] is bool:
        text += " (default: off)"
    elif "default:" not in text:
        text += f" (default: {'none' if default == () else default})"
    return text.replace("%", "%%")


class _Gather(argparse.Action):
    """``append`` for a tuple."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), values))


def _path(text: str) -> Path:
    return Path(text).resolve()
