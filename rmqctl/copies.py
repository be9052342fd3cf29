"""Report on logs that were read from several copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rmqctl.context import Context


class Read(Protocol):
    """A log that was read. ``healed``: [start, end) of each range that came from another copy."""

    @property
    def store(self) -> str: ...
    @property
    def copies(self) -> Sequence[str]: ...
    @property
    def healed(self) -> Sequence[tuple[int, int]]: ...


def note_healed(ctx: Context, stores: Iterable[Read]) -> None:
    """Note on stderr how many damaged bytes other copies replaced."""
    for store in stores:
        if store.healed:
            size = sum(high - low for low, high in store.healed)
            ctx.note(f"{store.store}: {size} bytes around damage were taken from another copy")


def of_copies(store: Read) -> dict[str, Any]:
    """Return the members ``copies`` and ``healed`` of a store's result; none if it was read from a single copy."""
    if not store.copies:
        return {}
    return {
        "copies": store.copies,
        "healed": [{"phy_offset": low, "size_bytes": high - low} for low, high in store.healed],
    }
