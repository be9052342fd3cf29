"""Convert DuckDB's errors to rmqctl's, in one line."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

from store_core.errors import FailedError, StoreError, UsageError
from store_core.export.query.catalog import NAMES

# After it: the query with a mark under it, or advice about settings, which are locked here.
_PLACE: Final = re.compile(r"\n\s*\n|\s*This limit was set by the|\s*This error signals an")
_KIND: Final = re.compile(r"((?:[A-Za-z-]+ ){1,4})Error: ")
_NO_TABLE: Final = re.compile(r"Table with name (.*?) does not exist!", re.DOTALL)
_NO_ROOM: Final = "failed to offload"  # to the temporary folder
_LONGEST: Final = 500
_SEE_TABLES: Final = "see `rmqctl sql --tables` for tables and columns"

# A pattern of DuckDB's text -> rmqctl's text and advice.
_BY_WORDS: Final = (
    (
        re.compile(
            rf"can only [a-z ]+ base table|can only modify view|(?:{'|'.join(NAMES)}) is not an table"
            rf'|existing object "(?:{"|".join(NAMES)})" is of type view',
            re.IGNORECASE,
        ),
        "the tables of the store, and views, can only be read",
        "give a SELECT, or make a table of your own from one",
    ),
    (
        re.compile(
            r'cannot access directory "[^"]*/extensions/|loading external extensions|.*: UPDATE_EXTENSIONS',
            re.IGNORECASE,
        ),
        "there are no extensions here",
        "nothing but the store can be reached",
    ),
)
# The kind before DuckDB's text -> the error's class and advice. All other errors are the query's fault.
_OTHERWISE: Final = (UsageError, "change the query")
_BY_KIND: Final[dict[str, tuple[type[StoreError], str]]] = {
    "Out of Memory": (FailedError, "give more --memory"),
    "IO": (FailedError, "see that the system's temporary folder has room"),
    "INTERNAL": (FailedError, "please report it"),
    "FATAL": (FailedError, "please report it"),
    "Binder": (UsageError, _SEE_TABLES),
    "Catalog": (UsageError, _SEE_TABLES),
    "Permission": (UsageError, "a query reads the tables of the store, and nothing else"),
}


def complaint(error: Exception) -> Exception:
    """Return the error to raise for DuckDB's, which Arrow may pass on as text; other errors are returned unchanged."""
    text = str(error)
    found = _KIND.match(text)
    if isinstance(error, StoreError) or found is None:
        return error
    if unknown := _NO_TABLE.match(text, found.end()):
        near = get_close_matches(unknown[1].lower(), NAMES, 1)
        to_do = f"did you mean {near[0]}? The tables are" if near else "the tables are"
        return UsageError(f"there is no table {unknown[1][:_LONGEST]}", to_do=f"{to_do} {', '.join(NAMES)}")
    for words, what, to_do in _BY_WORDS:
        if words.match(text, found.end()):
            return UsageError(what, to_do=to_do)
    error_type, to_do = _BY_KIND.get(found[1].strip(), _OTHERWISE)
    if _NO_ROOM in text:
        to_do = "give more --memory, or more room with TMPDIR"
    message = " ".join(_PLACE.split(text[found.end() :])[0].split())
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    is_word = not message[:2].isupper()  # SELECT is a keyword
    return error_type(message[:1].lower() + message[1:] if is_word else message, to_do=to_do)
