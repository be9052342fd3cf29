"""Starts played through, against real store code started on the same copy: damages combined that no recorded case combines."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.layout import paths, queue
from tests import stores
from tests.broker.conftest import OpenStore
from tests.broker.outcomes import compare_with_recorded
from tests.conftest import StoreCopy
from tests.surgery import Exit, apply_op, set_exit


def _filler_at_the_end(root: Path) -> None:
    """Pre-blank entries behind the last real entry of every queue: valid entries that reach to 2 GiB."""
    filler = queue.ENTRY.struct.pack(queue.FILLER_PHY_OFFSET, queue.FILLER_SIZE_BYTES, queue.FILLER_TAGS_CODE)
    for folder in (root / paths.CONSUMEQUEUE).glob("*/*"):
        files = sorted(folder.iterdir())
        if files:
            data = files[-1].read_bytes()
            end = len(data.rstrip(b"\0"))
            end += -end % len(filler)
            files[-1].write_bytes(data[:end] + filler + data[end + len(filler) :])


def _old_checkpoint(root: Path) -> None:
    """Times that lie between two segments, so that the scan starts in the middle of the log."""
    times = [message["storeTimestamp"] for message in stores.truth("load-533")["messages"]]
    middle = times[len(times) // 2] + 3000
    (root / paths.CHECKPOINT).write_bytes(struct.pack(">qqq", middle, middle, 0).ljust(4096, b"\0"))


OURS: dict[str, Callable[[Path], None]] = {"filler-at-the-end": _filler_at_the_end, "old-checkpoint": _old_checkpoint}

SAMPLE: tuple[tuple[str, str, tuple[str, ...], Exit], ...] = (
    ("4.3.0", "load-497", ("size-plus-one-last",), "crash"),
    ("4.3.0", "load-497", ("log-last-short", "cq-tail-lost"), "clean"),
    ("4.9.7", "load-497", ("cq-removed", "log-missing-mid"), "clean"),
    ("4.9.7", "load-497", ("filler-at-the-end", "cq-queue-missing"), "crash"),
    ("4.9.7", "load-497", ("zero-page-mid", "cq-removed", "checkpoint-removed"), "crash"),
    ("5.1.4", "load-533", ("old-checkpoint", "cq-hole-old", "torn-tail"), "crash"),
    ("5.3.3", "load-533", ("old-checkpoint", "filler-at-the-end"), "crash"),
    ("5.3.3", "load-533", ("log-missing-first", "cq-removed"), "clean"),
    ("5.4.0", "load-533", ("magic-first-mid", "cq-all-tail-lost", "checkpoint-removed"), "crash"),
    ("5.4.0", "load-533", ("log-full-then-old-file", "cq-removed"), "clean"),
)


@pytest.mark.parametrize(
    ("version", "base", "damages", "exit"), SAMPLE, ids=lambda part: "+".join(part) if isinstance(part, tuple) else part
)
def test_start_ends_as_the_real_one(
    version: str,
    base: str,
    damages: tuple[str, ...],
    exit: Exit,
    open_store: OpenStore,
    store_copy: StoreCopy,
    settings_of: Callable[[str], Path],
) -> None:
    root = store_copy(base)
    for damage in damages:
        if damage in OURS:
            OURS[damage](root)
        else:
            for op in stores.cases(base)[damage]["ops"]:
                apply_op(root, op)
    set_exit(root, exit)
    told = open_store(version, root, stores.properties_text(base), start_ms=6000, stop=False)
    told.setdefault("afterStart", {"returned": False})
    assert compare_with_recorded(root, settings_of(base), told, version) == {}
