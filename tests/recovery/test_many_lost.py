"""Lost records by the million go through scratch files and columns: to the same bytes as one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from store_core.layout import paths, record
from store_core.recovery import log_edits as mended
from store_core.recovery import lost_from_queues as evidence
from store_core.recovery import lost_table as rows
from store_core.recovery import queue_gaps as gaps
from store_core.recovery.apply.undo import undo
from store_core.recovery.keep_options import KeepOptions
from tests import stores
from tests.conftest import GoldenStore, differences
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, assert_kept, harm, log_bytes, places

Harmed = Callable[[Damageable], object]


def _lose_middle(store: Damageable) -> None:
    store.lose(len(store.segments) // 2)


def _wipe_and_garble(store: Damageable) -> None:
    """Zeros over one segment, other bytes over most of another, a damaged head in it, and the last one gone."""
    size = store.segment_size_bytes
    first = int(store.segments[0].name)
    store.zero(first + size, size)
    store.write(first + 2 * size + 3001, bytes(range(1, 251)) * ((size - 9000) // 250))
    store.lose(len(store.segments) - 1)


def _lose_middle_and_spoil_entries(store: Damageable) -> None:
    """Some entries point a few bytes beside the record that is gone, before it or behind."""
    _lose_middle(store)
    for number, message in enumerate(store.truth["messages"]):
        path, at = store.queue_file(message["topic"], message["queueId"], message["queueOffset"])
        if number % 7 == 3 and path.is_file():
            data = bytearray(path.read_bytes())
            data[at + 7] ^= 1 << number % 8
            path.write_bytes(data)


def _lose_queues_too(store: Damageable) -> None:
    _lose_middle(store)
    for folder in sorted((store.root / paths.CONSUMEQUEUE).iterdir())[::2]:
        shutil.rmtree(folder)


def _lose_all_queues_too(store: Damageable) -> None:
    _wipe_and_garble(store)
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)


def _spoil_bodies(store: Damageable) -> None:
    """One byte in each of most bodies. Some heads say another number than their entry, some entries another size, some both."""
    messages = [m for m in store.truth["messages"] if m["bodyLength"] > 0]
    for number, message in enumerate(messages[len(messages) // 8 : -len(messages) // 8]):
        if number % 40 == 39:
            continue
        store.flip_at(message["phyOffset"] + record.body_at(message["sysFlag"]))
        path, at = store.queue_file(message["topic"], message["queueId"], message["queueOffset"])
        if number % 30 == 29 and path.is_file():
            store.flip_at(message["phyOffset"] + record.HEAD.offset_of("queue_offset") + 7)
        if number % 50 == 49 and path.is_file():
            data = bytearray(path.read_bytes())
            data[at + 11] ^= 4
            path.write_bytes(data)


def _spoil_bodies_and_lose_queues(store: Damageable) -> None:
    _spoil_bodies(store)
    for folder in sorted((store.root / paths.CONSUMEQUEUE).iterdir())[::2]:
        shutil.rmtree(folder)


def _spoil_last_bodies(store: Damageable) -> None:
    """Nothing good stands behind them: what their heads tell of is no part of the log any more."""
    for message in store.truth["messages"][-len(store.truth["messages"]) // 4 :]:
        if message["bodyLength"] > 0:
            store.flip_at(message["phyOffset"] + record.body_at(message["sysFlag"]))


def _zero_inside(store: Damageable) -> None:
    """Zeros from a record in the first quarter up to one in the last, segment by segment."""
    messages = store.truth["messages"]
    start, end = (messages[len(messages) * quarter // 8]["phyOffset"] for quarter in (1, 7))
    while start < end:
        part_end = min(end, start - start % store.segment_size_bytes + store.segment_size_bytes)
        store.zero(start, part_end - start)
        start = part_end


def _zero_inside_and_lose_parents(store: Damageable) -> None:
    """Light queues alone tell of most records."""
    _zero_inside(store)
    for folder in sorted((store.root / paths.CONSUMEQUEUE).iterdir()):
        if not folder.name.startswith(paths.LMQ_PREFIX):
            shutil.rmtree(folder)


def _zero_inside_and_lose_light_queues(store: Damageable) -> None:
    _zero_inside(store)
    for folder in sorted((store.root / paths.CONSUMEQUEUE).iterdir()):
        if folder.name.startswith(paths.LMQ_PREFIX):
            shutil.rmtree(folder)


def _zero_inside_and_lose_some_queues(store: Damageable) -> None:
    _zero_inside(store)
    for folder in sorted((store.root / paths.CONSUMEQUEUE).iterdir())[::2]:
        shutil.rmtree(folder)


HARMS: Final = (
    _lose_middle,
    _lose_middle_and_spoil_entries,
    _wipe_and_garble,
    _lose_queues_too,
    _lose_all_queues_too,
    _spoil_bodies,
    _spoil_bodies_and_lose_queues,
    _spoil_last_bodies,
)
HARMS_OF_LIGHT_QUEUES: Final = (
    _zero_inside,
    _zero_inside_and_lose_parents,
    _zero_inside_and_lose_light_queues,
    _zero_inside_and_lose_some_queues,
    _spoil_bodies,
)
LIGHT_QUEUES: Final = ("lmq-497", "lmq-533")
CASES: Final = (
    *((base, harm) for base in ("load-497", "load-533", "bcq-533", "propcrc-533", "clean-540") for harm in HARMS),
    *((base, harm) for base in LIGHT_QUEUES for harm in HARMS_OF_LIGHT_QUEUES),
)
OPTIONS: Final = {"fill": KeepOptions(), "skip": KeepOptions("skip"), "open": KeepOptions(fill=False)}
WITH_ALL_OPTIONS: Final = ("load-533", "bcq-533", "lmq-533")  # of each kind of queue one


def _as_rows(monkeypatch: pytest.MonkeyPatch, fewest: int) -> None:
    for module in (evidence, gaps):
        monkeypatch.setattr(module, "FEWEST_ROWS", fewest)


@pytest.mark.product(9)
@pytest.mark.parametrize(
    ("base", "harm", "option"),
    [
        (base, harm, option)
        for base, harm in CASES
        for option in OPTIONS
        if option == "fill" or base in WITH_ALL_OPTIONS
    ],
)
def test_many_are_as_few(
    base: str,
    harm: Harmed,
    option: str,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opener = Opener(settings_of(base), stores.truth(base)["written_by"])
    store = damageable(base, "crash")
    harm(store)
    _as_rows(monkeypatch, 1 << 30)
    one_by_one = opener.recover(store.root, options=OPTIONS[option])
    _as_rows(monkeypatch, 2)
    for name, value in (("_MOST_HELD_ROWS", 40), ("_PART_SIZE_BYTES", 1 << 13), ("_CHUNK_ROWS", 16)):
        monkeypatch.setattr(rows, name, value)
    many = opener.recover(store.root, options=OPTIONS[option])
    assert many.lost
    assert many.as_json()["lost_records"] == one_by_one.as_json()["lost_records"]
    assert (many.lost, many.after, many.notes) == (one_by_one.lost, one_by_one.after, one_by_one.notes)


@pytest.mark.product(3)
@pytest.mark.parametrize(
    ("base", "harm"),
    [
        *((base, harm) for base in stores.BASES for harm in HARMS),
        *((base, harm) for base in LIGHT_QUEUES for harm in HARMS_OF_LIGHT_QUEUES),
        ("bcq-533", _zero_inside),
    ],
)
def test_many_are_written_as_few(
    base: str,
    harm: Harmed,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan's builder makes them again when it is applied without what was made already, and undo takes them back."""
    opener = Opener(settings_of(base), stores.truth(base)["written_by"])
    logs = []
    for fewest in (1 << 30, 2):
        store = damageable(base, "crash")
        harm(store)
        _as_rows(monkeypatch, fewest)
        monkeypatch.setattr(mended, "_MOST_RANGES", fewest)
        recovery = opener.recover(store.root)
        before = stores.snapshot(store.root)
        applied = apply_to(recovery, store.root)
        assert applied is not None
        logs.append(log_bytes(store.root))
        assert opener.recover(store.root).plan.steps == ()
        assert [f for f in opener.check(store.root) if f.severity != "info"] == []
        undo(store.root, applied.undo_id, apply=True)
        assert differences(before, stores.snapshot(store.root)) == []
    assert logs[0] == logs[1]


@pytest.mark.parametrize("base", ["load-497", "load-533", "clean-540"])
def test_entries_beside_a_lost_record_move_no_other(
    base: str, damageable: Callable[..., Damageable], golden: GoldenStore, settings_of: Callable[[str], Path]
) -> None:
    opener = Opener(settings_of(base), stores.truth(base)["written_by"])
    store = damageable(base, "crash")
    queues = opener.predict(store.root)["queues"]
    _lose_middle_and_spoil_entries(store)
    found = harm(golden(base), store.root, base)
    recovery = opener.recover(store.root)
    assert places(recovery.lost) == found.lost_places
    apply_to(recovery, store.root)
    assert_kept(golden(base), store.root, base, found.intact)
    assert opener.predict(store.root)["queues"] == queues
    assert opener.recover(store.root).plan.steps == ()


def test_nothing_more_behind_what_was_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_MOST_HELD_ROWS", 1)
    some = np.zeros(2, rows.ROW)
    some["phy_offset"] = 100, 50
    with rows.InLogOrder() as order:
        order.add(some)
        order.add(some[:0])
        assert [part["phy_offset"].tolist() for part in order.stretches()] == [[50, 100]]
