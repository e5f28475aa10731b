from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from fleet import public_prefixes
from tenants import adapters
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_base_model, subject


class Command(JsonCommand):
    help = (
        "Declare that a text is no secret, so that all tenants' prompts that begin with it share what it was computed "
        "to. It is put on all workers of the base model within seconds, and again after their restart."
    )
    example = (
        "manage.py declare_public_prefix support --model smollm2-135m-instruct --system "
        "'You answer the customers of Initech: briefly, kindly, and never about prices.'"
    )
    called: ClassVar = {"messages": "--system", "prompt": "--prompt"}

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "name", "what to call it: letters, digits, hyphens, underscores")
        parser.add_argument("--model", required=True, help="the base model")
        parser.add_argument("--adapter", metavar="OWNER/NAME", help="for this adapter instead of the base model alone")
        text = parser.add_mutually_exclusive_group(required=True)
        text.add_argument("--system", metavar="TEXT", help="a system prompt that chats begin with")
        text.add_argument("--system-file", type=Path, metavar="FILE", help="the same, from a file in UTF-8")
        text.add_argument("--prompt", metavar="TEXT", help="what completions begin with")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        system = options["system"] if options["system_file"] is None else _read(options["system_file"])
        prefix = public_prefixes.declare(
            of_command(),
            subject(options, "name"),
            find_base_model(options["model"]),
            prompt=options["prompt"],
            messages=None if system is None else [{"role": "system", "content": system}],
            adapter=None if options["adapter"] is None else adapters.named(options["adapter"], "adapter"),
        )
        shared = public_prefixes.shared_tokens(prefix)
        return {"name": prefix.name, "model": options["model"], "tokens": len(prefix.tokens), "shared_tokens": shared}

    def describe(self, result: dict[str, Any]) -> str:
        return (
            f"{result['name']} is public on {result['model']}: {result['shared_tokens']} of its {result['tokens']} "
            "tokens lie in full blocks, and are shared."
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--system-file {path}: {error}") from None
