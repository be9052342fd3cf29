"""Parse a config file once, and keep the derived answers for further questions of a command.

A command checks for each release that may have written a store whether it loads the files, and reads them for its own answer too. With many topics
each parse would take seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from store_core.codec.coerce import as_text
from store_core.codec.config_fields import FILES, Bean, ListOf, Plain, Table, Type
from store_core.codec.config_refusals import Refusals
from store_core.codec.json_dialect import MAX_SIZE_BYTES, Layout, loads
from store_core.layout import paths

Shown = dict[str, Any]

# 5.4 and later write each member of an integer-keyed map on a line of its own; 5.4 also the end of an empty map.
_SPREAD: Final = re.compile(r"\{\n\t+(?:-?\d+:|\n)")
_EMPTY: Final = re.compile(r"\{\n\t+\n")


class ParsedConfig:
    """The value of a text. Callers share ``tree`` and everything derived from it, and must not change them."""

    def __init__(self, data: bytes) -> None:
        self.tree: Any = loads(data)
        self._data = data
        self._refusals: dict[str, Refusals] = {}
        self._shown: dict[str, Shown] = {}

    @cached_property
    def layout(self) -> Layout | None:
        """The layout of the text, None if unknown: 5.4 and 5.5 by their line breaks, 5.x by members that 4.x does not write."""
        text = self._data.decode(errors="replace")
        if _SPREAD.search(text):
            return "5.5" if "{}" in text and not _EMPTY.search(text) else "5.4"
        if not isinstance(self.tree, dict) or not self.tree:
            return None
        version = self.tree.get("dataVersion")
        is_5 = "groupTopicMap" in self.tree or (isinstance(version, dict) and "stateVersion" in version)
        return "5" if is_5 else "4"

    def refusals(self, name: str) -> Refusals:
        """Return the refusals of the text as the file ``name``, one of ``FILES``."""
        if name not in self._refusals:
            self._refusals[name] = Refusals(name, self.tree)
        return self._refusals[name]

    def shown(self, name: str) -> Shown:
        """Return the members of the text as the file ``name`` under rmqctl's names. Raises ConfigError where rmqctl cannot show it (``by_us``)."""
        if name not in self._shown:
            self._shown[name] = shown(name, self.tree)
        return self._shown[name]


def shown(name: str, tree: Any) -> Shown:
    """Return the members of a parsed file under rmqctl's names; ``None`` counts as an empty file."""
    members = _bean(FILES[name].bean, tree or {}, "")
    if name in _LISTS:
        member, rows = _LISTS[name]
        members[member] = list(rows(members.pop(next(reversed(members)))))
    return members


def shown_as(type_: Type, value: Any, key: Any = "") -> Any:
    """Return a value under rmqctl's names, converted by its type. ``key``: the key or index of the value."""
    if isinstance(type_, Plain):
        return type_.convert(value, str(key))
    if isinstance(type_, Table):
        take, item = type_.key.convert, type_.value
        return {take(k, ""): shown_as(item, v, k) for k, v in (value or {}).items() if v is not None}
    if isinstance(type_, ListOf):
        return [shown_as(type_.item, item, key) for item in value or ()]
    if type_.is_raw:
        return {as_text(k, ""): as_text(v, "") for k, v in (value or {}).items() if v is not None}
    return _bean(type_, value or {}, key)


def _bean(bean: Bean, value: dict[Any, Any], key: Any) -> Shown:
    members: Shown = {bean.name: as_text(key, "")} if bean.name else {}
    for name, field in bean.fields.items():
        if field.shown:
            item, type_ = value.get(name), field.type
            if isinstance(type_, Plain):
                if item.__class__ is not type_.usual:
                    item = field.default if item is None else type_.convert(item, name, field.default or 0)
                members[field.shown] = item
            else:
                members[field.shown] = None if item is None and field.default is None else shown_as(type_, item)
    return members


def _filters(topics: Shown) -> Iterator[Shown]:
    for topic in topics.values():
        for found in topic["filters"].values():
            bloom = found["bloom"]
            yield {"topic": topic["topic"], **{name: found[name] for name in found if name != "bloom"}, **bloom}


def _orders(tables: Shown) -> Iterator[Shown]:
    for name, orders in tables.items():
        for queue_id, order in orders.items():
            steps = order["offsets"]  # the first offset, then the distances from it
            offsets = [*steps[:1], *(steps[0] + step for step in steps[1:])]
            yield {"topic_at_group": name, **order, "queue_id": queue_id, "offsets": offsets}


def _modes(topics: Shown) -> Iterator[Shown]:
    return ({"topic": topic, **mode} for topic, groups in topics.items() for mode in groups.values())


# Files whose last table is shown as a list: the list's name, and a function that makes its rows.
_LISTS: Final[dict[str, tuple[str, Callable[[Shown], Iterable[Shown]]]]] = {
    paths.CONSUMER_FILTER_JSON: ("filters", _filters),
    paths.CONSUMER_ORDER_INFO_JSON: ("orders", _orders),
    paths.MESSAGE_REQUEST_MODE_JSON: ("modes", _modes),
}


_parsed: Final[dict[bytes, ParsedConfig]] = {}  # the newest last


def parse_config(data: bytes) -> ParsedConfig:
    """Parse a config file's text, or return the result of an earlier call for the same bytes. Raises JsonError."""
    found = _parsed.pop(data, None) or ParsedConfig(data)
    _parsed[data] = found
    while sum(map(len, _parsed)) > MAX_SIZE_BYTES and len(_parsed) > 1:
        del _parsed[next(iter(_parsed))]
    return found
