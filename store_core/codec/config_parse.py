"""A parsed config file, and what was found out about it: each text is parsed once, however many questions a command has.

A command asks as many releases as may have written a store whether they load its files, and reads them for its own answer, too.
With 50,000 topics each of these answers took seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from store_core.codec.config_beans import ConfigMembers
from store_core.codec.config_reader import ConfigReader
from store_core.codec.config_types import distinct, what_is_wrong, wrong_for_all
from store_core.codec.json_dialect import MAX_SIZE_BYTES, loads

T = TypeVar("T")


class ParsedConfig:
    """The value of one text. Callers share ``tree`` and everything decoded from it, and change neither."""

    __slots__ = ("_answers", "_distinct", "tree")

    def __init__(self, data: bytes) -> None:
        self.tree: Any = loads(data)
        self._answers: dict[Any, Any] = {}
        self._distinct: dict[str, Any] = {}

    def decoded(self, decode: Callable[[Any], T]) -> T:
        """Return what ``decode`` makes of the tree. Raises what ``decode`` raises."""
        if decode not in self._answers:
            self._answers[decode] = decode(self.tree)
        value: T = self._answers[decode]
        return value

    def what_is_wrong(self, name: str, members: ConfigMembers, reader: ConfigReader, *, is_blank: bool = False) -> str:
        """Return why a release fails to load the text as the file ``name``; "" if it loads it."""
        asked = name, members, reader, is_blank
        if asked not in self._answers:
            self._answers[asked] = what_is_wrong(name, self._kinds(name), members, reader, is_blank=is_blank)
        why: str = self._answers[asked]
        return why

    def wrong_for_all(self, name: str) -> str:
        """Return why no release loads the text as the file ``name``; "" if one does."""
        if name not in self._answers:
            self._answers[name] = wrong_for_all(name, self._kinds(name))
        why: str = self._answers[name]
        return why

    def _kinds(self, name: str) -> Any:
        if name not in self._distinct:
            self._distinct[name] = distinct(name, self.tree)
        return self._distinct[name]


_parsed: Final[dict[bytes, ParsedConfig]] = {}  # the newest last


def parse_config(data: bytes) -> ParsedConfig:
    """Parse a config file's text, or return what an earlier call made of the same bytes. Raises JsonError."""
    found = _parsed.pop(data, None) or ParsedConfig(data)
    _parsed[data] = found
    while sum(map(len, _parsed)) > MAX_SIZE_BYTES and len(_parsed) > 1:
        del _parsed[next(iter(_parsed))]
    return found
