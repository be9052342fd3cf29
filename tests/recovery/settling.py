"""Settle an interrupted change without making another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from store_core.recovery.apply.finish_interrupted import Settled, changing, settle
from store_core.storage.journal import unfinished
from store_core.storage.syscalls import FileOps


def finish_or_roll_back(
    root: Path | str, *, writable_roots: Sequence[Path | str] = (), ops: FileOps | None = None
) -> tuple[Settled, ...]:
    """Do what every writing command does first. Without anything interrupted, takes no lock."""
    if unfinished(root) is None:
        return ()
    with changing(root, writable_roots, None, ops) as (writer, held):
        return settle(writer, held)
