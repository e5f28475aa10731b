"""Messages to token ids and back, without torch or transformers: ``tokenizers`` and a sandboxed jinja2 only.

The gateway and the worker's front render prompts with the same code, from the same model store directory.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from inference.errors import ConfigError, InvalidRequest
from inference.model_config import end_tokens
from inference.token_bytes import TokenBytes
from inference.tools.conversation import has_calls, with_tools
from inference.tools.request import ToolUse
from inference.tools.style import ToolStyle, style_of

REPLACEMENT = "\ufffd"
WINDOW_TOKENS = 12
"""A detokenizer decodes at most about this many tokens again per push; a smaller window re-anchors more often."""
HELD_TOKENS = 32
"""So many tokens after the last whole character are no character's beginning: an incomplete one has at most 3 bytes."""
KEPT_TOKENS = 16
"""Of those, so many stay to be decoded with what follows: enough for what is incomplete and what it is told by."""


class PromptRenderer:
    """Chat template and tokenizer of one base model.

    Thread-safe after :meth:`load`: nothing is mutated by rendering, encoding or decoding.

    :ivar context_length: most positions the model was trained for.
    :ivar eos_token_ids: tokens that end an answer (of generation_config.json, else config.json).
    :ivar longest_token: most characters that one token can stand for: ``n`` characters are at least
        ``n / longest_token`` tokens.
    :ivar vocab_size: rows of the embedding; every token id is below it.
    :ivar token_bytes: what single tokens stand for.
    """

    def __init__(
        self,
        *,
        tokenizer_json: str,
        template: str | None,
        special_tokens: dict[str, str],
        context_length: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._literal = Tokenizer.from_str(tokenizer_json)
        self._literal.encode_special_tokens = True
        for tokenizer in (self._tokenizer, self._literal):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        control = {
            added.content: token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special
        }
        self._control = control
        # Longest first, as the tokenizer itself matches.
        alternatives = "|".join(re.escape(text) for text in sorted(control, key=len, reverse=True))
        self._control_pattern = re.compile(f"({alternatives})") if control else None
        self._template = _environment().from_string(template) if template is not None else None
        self._source = template or ""
        self._special_tokens = special_tokens
        # No token stands for more characters than its own text in the vocabulary has.
        self.longest_token = max((len(token) for token in self._tokenizer.get_vocab()), default=1)
        self.token_bytes = TokenBytes(self._tokenizer)
        self.context_length = context_length
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids

    @classmethod
    def load(cls, model_dir: Path) -> PromptRenderer:
        """Read a model store directory; raises :class:`ConfigError` naming what is missing or malformed."""
        config = _read_json(model_dir / "config.json")
        generation = _read_json(model_dir / "generation_config.json", optional=True)
        tokenizer_config = _read_json(model_dir / "tokenizer_config.json", optional=True)
        try:
            tokenizer_json = (model_dir / "tokenizer.json").read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{model_dir / 'tokenizer.json'}: {error.strerror}") from error
        try:
            return cls(
                tokenizer_json=tokenizer_json,
                template=_chat_template(model_dir, tokenizer_config),
                special_tokens=_special_tokens(tokenizer_config),
                context_length=int(config["max_position_embeddings"]),
                vocab_size=int(config["vocab_size"]),
                eos_token_ids=end_tokens(config, generation),
            )
        except KeyError as error:
            raise ConfigError(f"{model_dir / 'config.json'} lacks {error}") from error
        except jinja2.TemplateError as error:
            raise ConfigError(f"{model_dir}: the chat template is not valid: {error}") from error

    @cached_property
    def tool_style(self) -> ToolStyle:
        """How the model writes calls, found out by rendering with and without a tool.

        Raises :class:`InvalidRequest` (``param="tools"``) for a form that is not known here.
        """
        probe = {"name": "probe", "description": "d", "parameters": {"type": "object", "properties": {}}}
        question = [{"role": "user", "content": "x"}]
        without = self._render(question, add_generation_prompt=True)
        shown = self._render(question, add_generation_prompt=True, tools=[{"type": "function", "function": probe}])
        style = style_of(self._source, shows_tools=shown != without)
        if style is None:
            raise InvalidRequest("This model's chat template writes tools in a form that is not supported", "tools")
        return style

    def encode_tool_chat(self, messages: list[dict[str, Any]], use: ToolUse | None) -> list[int]:
        """Token ids of a conversation with calls and results, or with tools on offer.

        A call that is forced has begun at the end of the prompt.
        """
        if use is None and not has_calls(messages):
            return self.encode_chat(messages)
        style = self.tool_style
        known, tools = with_tools(messages, use.tools if use is not None else (), style)
        begun = style.begun(use.named) if use is not None and use.forced else ""
        return self.encode_chat(known, tools=tools, begun=begun)

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        begun: str = "",
    ) -> list[int]:
        """Token ids of the conversation, equal to transformers' ``apply_chat_template`` for ordinary messages.

        :param tools: for the template. :param begun: what the answer begins with.

        A control token's text inside a message (``<|im_end|>``) is encoded as the plain characters it consists of.
        Every such text is replaced by an unguessable placeholder before the template runs, the result is cut at the
        control tokens that the template itself wrote, and the placeholders are put back into the pieces, which are
        encoded with control tokens off. Encoding each message by itself would be simpler and wrong: merges cross the
        border between template and message (a message that starts with a line break).
        """
        plain: Any = {"messages": _plain_messages(messages), "tools": tools}
        pattern = self._control_pattern
        if pattern is None or not any(pattern.search(text) for text in _texts(plain)):
            rendered = self._render(plain["messages"], add_generation_prompt, tools)
            return self.encode(rendered + begun, add_special_tokens=False)
        # Digits between private-use characters survive trimming, changes of case and JSON.
        nonce = secrets.randbits(128)
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match.group())
            return f"\ue000{nonce}\ue001{len(hidden) - 1}\ue002"

        guarded = _map_texts(plain, lambda text: pattern.sub(hide, text))
        rendered = self._render(guarded["messages"], add_generation_prompt, guarded["tools"]) + begun
        placeholder = re.compile(f"\ue000{nonce}\ue001(\\d+)\ue002")
        ids: list[int] = []
        for piece in pattern.split(rendered):
            if piece in self._control:
                ids.append(self._control[piece])
            elif piece:
                text = placeholder.sub(lambda match: hidden[int(match.group(1))], piece)
                ids += self._literal.encode(text, add_special_tokens=False).ids
        return ids

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of raw text; control tokens written in it are control tokens.

        :param add_special_tokens: also add what the tokenizer puts around a text (Llama's begin token).
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("The text holds characters that are not valid Unicode", "prompt") from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without control tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _render(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, tools: list[dict[str, Any]] | None = None
    ) -> str:
        if self._template is None:
            raise InvalidRequest("This model has no chat template; use /v1/completions", "messages")
        try:
            text = self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )  # fmt: skip
            text.encode()
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"The model's chat template refuses these messages: {error}", "messages") from error
        except UnicodeEncodeError as error:
            raise InvalidRequest("A message holds characters that are not valid Unicode", "messages") from error
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise InvalidRequest("The model's chat template cannot render these messages", "messages") from error
        return text


class Detokenizer:
    """Text of a growing sequence of ids, piece by piece; never splits a UTF-8 character.

    Decodes a small window again on every push, because a token's text depends on its neighbours. The pieces together
    equal ``renderer.decode`` of all ids. One exception: a tokenizer with byte fallback gives a whole run of bytes for
    broken if one of them is; here, whole characters that come long after that byte can be what they are.
    """

    def __init__(self, renderer: PromptRenderer) -> None:
        self._decode = renderer.decode
        self._window: list[int] = []
        self._clean = 0  # ids[:clean] of the window decode to whole characters
        self._emitted = 0  # characters of the window's text already handed out

    def push(self, ids: Sequence[int]) -> str:
        self._window += ids
        text = self._decode(self._window)
        # An incomplete character decodes to a trailing U+FFFD: keep it until it is whole, or until flush().
        safe = len(text.rstrip(REPLACEMENT)) if text.endswith(REPLACEMENT) else len(text)
        piece = text[self._emitted : safe]
        self._emitted = max(self._emitted, safe)
        if safe == len(text):
            if len(self._window) >= WINDOW_TOKENS and self._clean:
                self._window = self._window[self._clean :]
                self._emitted = len(self._decode(self._window))
            self._clean = len(self._window)
        elif len(self._window) - self._clean > HELD_TOKENS:
            return piece + self._give_up(text)
        return piece

    def _give_up(self, text: str) -> str:
        """Emit what the window, whose text does not end in a whole character, has no hope for; go on with its end.

        :returns: those replacement characters of ``text`` that are final.
        """
        emitted = self._emitted
        tail, start = self._cut(text)
        self._window, self._clean = self._window[-tail:], 0
        self._emitted = max(0, emitted - start)
        return text[emitted : max(emitted, start)]

    def _cut(self, text: str) -> tuple[int, int]:
        """How many tokens to keep, and where in ``text`` theirs begins (below 0: it has more characters than text).

        The cut lies between two characters if both sides decoded apart give the same as together: a character in pieces
        is one replacement character for each piece. At least four tokens stay: three can be an incomplete character.
        """
        for tail in range(4, KEPT_TOKENS + 1):
            end = self._decode(self._window[-tail:])
            if end and self._decode(self._window[:-tail]) + end == text:
                return tail, len(text) - len(end)
        # Every token ends within a character, and begins within one. What is read from the middle of a character is
        # wrong for three bytes and right after them: the texts agree at their ends.
        end = self._decode(self._window[-KEPT_TOKENS:])
        return KEPT_TOKENS, len(text) - len(end)

    def flush(self) -> str:
        """What was held back; call once, after the last id."""
        text = self._decode(self._window)
        piece = text[self._emitted :]
        self._emitted = len(text)
        return piece


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks answers for training; when serving it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that published chat templates are written for (transformers' names and whitespace rules)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with their text parts joined, which is what templates of text models expect."""
    plain = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"{where} needs a role", where)
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content))
        elif content is not None and not isinstance(content, str):
            raise InvalidRequest(f"{where}.content must be text or a list of text parts", f"{where}.content")
        plain.append({**message, "content": content if content is not None else ""})
    return plain


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}: only parts of type 'text' are supported", where)
    return str(part["text"])


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in _texts(part)]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []


def _map_texts(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(part, change) for key, part in value.items()}
    return [_map_texts(part, change) for part in value] if isinstance(value, list) else value


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if optional:
            return {}
        raise ConfigError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return data


def _chat_template(model_dir: Path, tokenizer_config: dict[str, Any]) -> str | None:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _special_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """The tokens that templates know by name (``bos_token`` …)."""
    named = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = tokenizer_config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            named[name] = value
    return named
