"""Define the errors that end the work. Damage is never raised: it is returned as findings.

StoreError
├── UsageError            the call cannot be understood or carried out as worded (exit 2)
├── NotAStoreError        the path is missing, no folder, or holds no store (exit 10)
├── StoreInUseError       a broker or another rmqctl works on the store (exit 11)
├── PlanOutOfDateError    the store has changed since the plan or journal was made (exit 12)
└── FailedError           any other reason to stop: I/O, disk full, unsupported (exit 1)
    └── UnreadableError   a file exists and cannot be read
"""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"([a-z][a-z0-9+.-]+:/{1,2})([^/\s?#@]*)@", re.IGNORECASE)
_QUERY: Final = re.compile(r"([a-z][a-z0-9+.-]+:/{1,2}[^\s?]*\?)[\w.%-]+=[^\s)'\"]*", re.IGNORECASE)
_CONTAINERS: Final = ("abfs:", "abfss:")  # their addresses have a container before the @
_HIDDEN: Final = "***"


def without_secrets(text: str) -> str:
    """Return a text with the user names, passwords and signatures of its addresses hidden."""
    return _QUERY.sub(rf"\1{_HIDDEN}", _USER.sub(_user_hidden, text)) if ":/" in text else text


def _user_hidden(found: re.Match[str]) -> str:
    container, is_more, _ = found[2].partition(":")
    is_known = found[1].lower().startswith(_CONTAINERS)
    shown = f"{container}:{_HIDDEN}" if is_known and is_more else container if is_known else _HIDDEN
    return f"{found[1]}{shown}@"


class StoreError(Exception):
    """An error that ends the command: ``what`` happened, ``where``, and what ``to_do`` about it."""

    code = "failed"

    def __init__(
        self, what: str, *, where: str = "", to_do: str = "", path: str | None = None, phy_offset: int | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where or (path or "")
        self.to_do = to_do
        self.path = path
        self.phy_offset = phy_offset

    def __str__(self) -> str:
        line = self.what
        if self.where:
            line += f" ({self.where})"
        if self.to_do:
            line += f": {self.to_do}"
        return line


class UsageError(StoreError):
    """The call cannot be understood or carried out as worded."""

    code = "usage"


class NotEmptyError(UsageError):
    """A folder for results holds something else."""


class NotAStoreError(StoreError):
    """There is no store at the path."""

    code = "not_a_store"


class StoreInUseError(StoreError):
    """A broker or another rmqctl holds the store."""

    code = "in_use"


class PlanOutOfDateError(StoreError):
    """A plan or journal was made for another state of the store."""

    code = "out_of_date"


class FailedError(StoreError):
    """The work cannot continue: I/O error, disk full, a feature that this version does not support."""

    code = "failed"


class UnreadableError(FailedError):
    """A file of a store exists and the kernel refuses to read it. ``number`` is the errno, ``at`` the position in the file."""

    number = 0
    at = 0
