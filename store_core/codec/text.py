"""Decode bytes to text as a broker's Java does."""

from __future__ import annotations

import re
from typing import Final

# An encoded surrogate, whole or cut after its second byte: Java replaces it by one U+FFFD, Python each of its bytes.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def decode_text(raw: bytes) -> str:
    """Return the text of UTF-8 bytes, with as many U+FFFD for malformed parts as in Java. Raises nothing."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")


def utf16_length(text: str) -> int:
    """Return the length of a text in Java's characters (UTF-16 code units)."""
    return len(text) + sum(character > "\uffff" for character in text)
