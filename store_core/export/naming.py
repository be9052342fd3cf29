"""Choose names for stores that are read together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from store_core.errors import UsageError
from store_core.storage.identity import broker_identity
from store_core.storage.settings import Settings


@dataclass(frozen=True, slots=True)
class Called:
    """The names a store may have: the given NAME, else the broker's name in its settings, else its folder."""

    given: str | None
    told: str | None
    root: Path

    @classmethod
    def of(cls, given: str | None, settings: Settings) -> Called:
        broker_name = settings.value("brokerName")
        if given is None and not broker_name and (identity := broker_identity(settings.root)) is not None:
            broker_name = identity.broker
        return cls(None if given is None else _readable(given), broker_name or None, settings.root)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the store's path, readable in any encoding."""
        return tuple(_readable(part) for part in self.root.parts)

    @classmethod
    def together(cls, copies: Sequence[Called]) -> Called:
        """Return the names of copies of one log: the first given name, and the first broker name."""
        given = next((called.given for called in copies if called.given), None)
        return cls(given, next((called.told for called in copies if called.told), None), copies[0].root)


def distinct_names(stores: Sequence[Called]) -> list[str]:
    """Return a name for each store, no two alike.

    A broker name that several stores share names none of them: they are named by the last parts of their paths that
    differ. Raises UsageError where two stores were given the same name or are the same folder.
    """
    given = Counter(called.given for called in stores if called.given is not None)
    if twice := [name for name, times in given.items() if times > 1]:
        raise UsageError(f"two stores are called {twice[0]!r}", to_do="give each a name of its own, NAME=PATH")
    times_of = Counter(called.given or called.told for called in stores)
    names = [called.given or (called.told if times_of[called.told] == 1 else None) for called in stores]
    return [name or _by_path(number, stores, names) for number, name in enumerate(names)]


def _by_path(number: int, stores: Sequence[Called], names: Sequence[str | None]) -> str:
    """Return as many last parts of a store's path as no other store without a name has."""
    root = stores[number].root
    parts = [part for part in stores[number].parts if part != root.anchor] or [str(root)]
    taken = {name for name in names if name is not None}
    others = [called.parts for n, called in enumerate(stores) if n != number and names[n] is None]
    for count in range(1, len(parts) + 1):
        name = "/".join(parts[-count:])
        if name not in taken and not any(other[-count:] == tuple(parts[-count:]) for other in others):
            return name
    if not any(called.root == root for n, called in enumerate(stores) if n != number):
        return _readable(str(root))
    raise UsageError(
        "two stores are one", path=str(root), to_do="name each store once, or its copies with -s NAME=PATH"
    )


def _readable(text: str) -> str:
    """Decode a word of the command line or of a path; bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(text).decode(errors="replace")
