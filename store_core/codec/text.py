"""Bytes to text as a broker's Java reads them."""

from __future__ import annotations

import re
from typing import Final

# An encoded surrogate, whole or cut after its second byte: Java makes one U+FFFD of it, Python one of each byte.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def decode_text(raw: bytes) -> str:
    """UTF-8 to text; whatever is malformed becomes U+FFFD, as many of them as in Java. Raises nothing."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")


def utf16_length(text: str) -> int:
    """Length of a text in Java's characters (UTF-16 code units)."""
    return len(text) + sum(character > "\uffff" for character in text)
