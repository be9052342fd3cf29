"""Convert errors of optional libraries into errors of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from store_core.errors import FailedError, StoreError
from store_core.storage.remote_errors import pauses_of

_LONGEST: Final = 500
# After these words SQLAlchemy repeats its query, and names a page of its documentation.
_REPEATED_QUERY: Final = re.compile(r" \[SQL: | \(Background on this error")
_FULL: Final = "make room on that file system, and run the command again"
_TO_DO: Final = {
    "database is locked": "wait for the process that has the catalog open, and run the command again",
    "readonly database": "give its user the right to write to it",
    "disk is full": _FULL,
    "No space left on device": _FULL,
    "unable to open database file": "see whether its folder is there and has room for a file (df, df -i), and run the command again",
}
# Transient errors of these libraries' clients; a truncated file that was just written is a truncated answer.
_TRANSIENT: Final = re.compile(
    r"error sending request|response body|before message length|Parquet magic bytes not found"
    r"|HTTP status|status (code )?(429|50[0234])|Server Error"
)
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")


@contextmanager
def told(address: str, doing: str) -> Iterator[None]:
    """Convert any error of a library into a FailedError of one line."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # the libraries' errors share no base class
        message = " ".join(_COLOUR.sub("", str(error)).split()) or type(error).__name__
        message = _REPEATED_QUERY.split(message, maxsplit=1)[0]
        is_transient = "://" in address and (pauses_of(error) or _TRANSIENT.search(message))
        otherwise = "run the command again" if is_transient else "see what it says"
        to_do = next((to_do for words, to_do in _TO_DO.items() if words in message), otherwise)
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
        raise FailedError(f"{doing}: {message}", path=address, to_do=to_do) from error
