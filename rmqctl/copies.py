"""What is told of logs that were read from several copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rmqctl.context import Context


class Read(Protocol):
    """A log that was read. ``healed``: [start, end) of each stretch that another copy gave."""

    @property
    def store(self) -> str: ...
    @property
    def copies(self) -> Sequence[str]: ...
    @property
    def healed(self) -> Sequence[tuple[int, int]]: ...


def note_healed(ctx: Context, stores: Iterable[Read]) -> None:
    """Say on stderr what damage was made good."""
    for store in stores:
        if store.healed:
            size = sum(high - low for low, high in store.healed)
            ctx.note(f"{store.store}: {size} bytes around damage were taken from another copy")


def of_copies(store: Read) -> dict[str, Any]:
    """Members of a store's part of the result, for one of which several copies were read."""
    if not store.copies:
        return {}
    return {
        "copies": store.copies,
        "healed": [{"phy_offset": low, "size_bytes": high - low} for low, high in store.healed],
    }
