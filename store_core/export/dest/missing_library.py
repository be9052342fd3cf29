"""Libraries that not everybody has, and what they raise, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from store_core.errors import FailedError, StoreError
from store_core.storage.remote_errors import pauses_of

_LONGEST: Final = 500
# Behind these SQLAlchemy repeats what it had asked, and names a page of its own.
_MORE: Final = re.compile(r" \[SQL: | \(Background on this error")
_FULL: Final = "make room on that file system, and run the command again"
_TO_DO: Final = {
    "database is locked": "wait for whoever has the catalog open, and run the command again",
    "readonly database": "give its user the right to write to it",
    "disk is full": _FULL,
    "No space left on device": _FULL,
    "unable to open database file": "see whether its folder is there and has room for a file (df, df -i), and run the command again",
}
# Said by these libraries' own clients; a file that is cut off, where it has just been written, is an answer that was.
_PASSES: Final = re.compile(
    r"error sending request|response body|before message length|Parquet magic bytes not found"
    r"|HTTP status|status (code )?(429|50[0234])|Server Error"
)
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")


@contextmanager
def told(address: str, doing: str) -> Iterator[None]:
    """Whatever a library raises as one error in one line."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # theirs have no root of their own
        said = " ".join(_COLOUR.sub("", str(error)).split()) or type(error).__name__
        said = _MORE.split(said, maxsplit=1)[0]
        passes = "://" in address and (pauses_of(error) or _PASSES.search(said))
        otherwise = "run the command again" if passes else "see what it says"
        to_do = next((to_do for words, to_do in _TO_DO.items() if words in said), otherwise)
        said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
        raise FailedError(f"{doing}: {said}", path=address, to_do=to_do) from error
