"""What single tokens stand for. A token can be half a character, so the answer is bytes."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes of each token of one tokenizer: byte-level BPE, SentencePiece's BPE with byte fallback, or plain text.

    Thread-safe. Grows by one small entry for each token that was ever asked for.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {token: added.content.encode() for token, added in tokenizer.get_added_tokens_decoder().items()}
        decoder = tokenizer.decoder
        kinds = _kinds(json.loads(decoder.__getstate__())) if decoder is not None else set()
        self._byte_level = _byte_of_character() if "ByteLevel" in kinds else None
        self._spaces = bool(kinds & {"Replace", "Metaspace"})
        self._fallback = "ByteFallback" in kinds
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        """Empty for an id that the tokenizer does not know: embeddings may have more rows than it has tokens."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._look_up(token)
        return found

    def text(self, token: int, *, prefix: str = "") -> str:
        r"""The token as text; a part of a character as an escape (``\xf0\x9f``) and with ``prefix``, as OpenAI does."""
        content = self.of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return prefix + content.decode(errors="backslashreplace")

    def begins(self, token: int, piece: str) -> int:
        """Where in ``piece``, the text that became known with the token, its own characters begin.

        Not at the start when something was held back before it that turned out to be no character.
        """
        try:
            own = self.of(token).decode()
        except UnicodeDecodeError:
            return 0
        return len(piece) - len(own) if own and piece.endswith(own) else 0

    def _look_up(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token]
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level is not None:
            return bytes(self._byte_level[character] for character in piece)
        if self._fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match.group(1), 16)])
        if self._spaces:
            return str(piece).replace("▁", " ").encode()
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text.encode()


def _kinds(decoder: dict[str, Any]) -> set[str]:
    """Types of a decoder and of those it is made of."""
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", ()):
        kinds |= _kinds(part)
    return kinds


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character; this is its way back (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}
