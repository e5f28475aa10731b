"""How a model writes its calls."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """:param name: what it is called.

    :param opening: what a call begins with in the midst of text, ``closing``: what ends it. Empty: the whole answer is
        one call or none.
    :param arguments_key: what the arguments are called beside the name.
    :param templated: the model's own template writes tools, calls and results; otherwise they are put into messages
        that every template knows.
    """

    name: str
    opening: str
    closing: str
    arguments_key: str
    templated: bool = True

    def begun(self, named: str | None) -> str:
        """What an answer that has to be a call begins with; it is put at the end of the prompt."""
        opening = f"{self.opening}\n" if self.opening else ""
        if named is None:
            return opening
        return f'{opening}{{"name": {json.dumps(named)}, "{self.arguments_key}": '


HERMES = ToolStyle("hermes", "<tool_call>", "</tool_call>", "arguments")
LLAMA = ToolStyle("llama", "", "", "parameters")
UNTAUGHT = ToolStyle("hermes", "<tool_call>", "</tool_call>", "arguments", templated=False)
"""For models whose template knows no tools. They were hardly taught to call any, so only a forced call is sure."""


def style_of(template: str, *, shows_tools: bool) -> ToolStyle | None:
    """The style of a chat template; ``None``: it writes tools in a form that is not known here.

    :param shows_tools: whether a conversation with tools is rendered differently from one without.
    """
    if not shows_tools:
        return UNTAUGHT
    if "<tool_call>" in template:
        return HERMES
    return LLAMA if '"parameters"' in template or "<|python_tag|>" in template else None
