"""Files in which bytes are missing, or there twice: what can still be read of them goes back to its place."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.layout import paths
from store_core.recovery.apply.undo import undo
from tests import stores
from tests.conftest import GoldenStore, differences
from tests.damage import Damageable, offset_in_record
from tests.recovery.recovering import (
    Opener,
    apply_to,
    assert_kept,
    batch_size,
    is_queued,
    log_bytes,
    place,
    places,
    record_bytes,
)

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]
BASES = ("load-497", "load-533", "clean-540")
PAGE = 4096


def _opener(base: str, settings_of: SettingsOf) -> Opener:
    return Opener(settings_of(base), stores.truth(base)["written_by"])


def _segment(store: Damageable, number: int) -> tuple[Path, list[int]]:
    """A segment, and where its records begin in it."""
    path = store.segments[number]
    start, size = int(path.name), store.segment_size_bytes
    return path, [m["phyOffset"] - start for m in store.truth["messages"] if 0 <= m["phyOffset"] - start < size]


def _edit(path: Path, *cuts: tuple[int, int], size_bytes: int | None) -> None:
    """Leave out bytes, (where, how many), or repeat those in front, if many are below 0; from the last place on. ``size_bytes``: the
    file's length afterwards."""
    data = path.read_bytes()
    for at, many in sorted(cuts, reverse=True):
        data = data[:at] + data[at + many :]
    path.write_bytes(data if size_bytes is None else data[:size_bytes].ljust(size_bytes, b"\0"))


def _assert_all_that_is_there_is_kept(
    store: Damageable, golden: Path, base: str, opener: Opener, cut_at: list[int]
) -> None:
    """Every record whose bytes are somewhere in the log stands in its place afterwards, is in its queue, and all others are told.

    One that is cut where no checksum looks can still be read, and keeps its place, whatever else there is of it.
    """
    size = store.segment_size_bytes
    was, harmed = log_bytes(golden), [bytes(data) for data in log_bytes(store.root).values()]
    there: list[dict[str, Any]] = []
    gone: list[dict[str, Any]] = []
    for message in store.truth["messages"]:
        is_cut = any(0 < at - message["phyOffset"] < message["storeSize"] for at in cut_at)
        is_there = any(record_bytes(was, message, size) in data for data in harmed) and not is_cut
        (there if is_there else gone).append(message)
    before = stores.snapshot(store.root)
    recovery = opener.recover(store.root)
    applied = apply_to(recovery, store.root)
    assert applied is not None
    assert_kept(golden, store.root, base, there)
    lost = {
        (m["topic"], m["queueId"], m["queueOffset"] + n) for m in gone if is_queued(m) for n in range(batch_size(m))
    }
    assert places(recovery.lost) <= lost
    # Without queues, nobody knows the first and the last messages of one.
    assert len(lost) - len(places(recovery.lost)) <= 2 or any(run.topic is None for run in recovery.lost)
    assert any("beside their place" in note for note in recovery.notes)
    assert opener.recover(store.root).plan.steps == ()
    assert opener.predict(store.root) == recovery.after.as_json()
    undo(store.root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(store.root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


CUTS: dict[str, Callable[[list[int], int], list[tuple[int, int]]]] = {
    "a byte is missing": lambda at, size: [(size // 3 + 5, 1)],
    "a page is missing": lambda at, size: [(size // 3 // PAGE * PAGE, PAGE)],
    "whole records are missing": lambda at, size: [(at[10], at[14] - at[10])],
    "a page is there twice": lambda at, size: [(size // 3 // PAGE * PAGE, -PAGE)],
    "whole records are there twice": lambda at, size: [(at[14], at[10] - at[14])],
    "two pages are missing": lambda at, size: [(size // 4 // PAGE * PAGE, PAGE), (size // 2 // PAGE * PAGE, PAGE)],
    "one is missing, one there twice": lambda at, size: [(size // 4, PAGE), (size // 2, -PAGE)],
    "records are missing in two places": lambda at, size: [(at[10], at[14] - at[10]), (at[-2], at[-1] - at[-2])],
}


@pytest.mark.product(4)
@pytest.mark.parametrize("queues", ["whole", "missing"])
@pytest.mark.parametrize("length", ["as before", "as it comes"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("base", BASES)
def test_what_was_moved_goes_back(
    base: str,
    cut: str,
    length: str,
    queues: str,
    golden: GoldenStore,
    damageable: DamageableOf,
    settings_of: SettingsOf,
) -> None:
    """The first segment, one in the middle, and the last one in turn."""
    store = damageable(base, random.Random(f"{base}{cut}").choice(["clean", "crash"]))
    number = {"whole": 2, "missing": 0}[queues] if length == "as before" else -1
    used = [s for s in range(len(store.segments)) if len(_segment(store, s)[1]) > 40]
    path, at = _segment(store, used[number])
    cuts = CUTS[cut](at, min(at[-1], store.segment_size_bytes))
    _edit(path, *cuts, size_bytes=store.segment_size_bytes if length == "as before" else None)
    if queues == "missing":
        shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    cut_at = [int(path.name) + at for at, _ in cuts]
    _assert_all_that_is_there_is_kept(store, golden(base), base, _opener(base, settings_of), cut_at)


def test_an_older_life_behind_the_end_stays_where_it_is(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """Whole records that say they belong behind the log's end, older than its last one, where no queue is left to tell."""
    store = damageable("load-533", "crash")
    messages = [m for m in store.truth["messages"] if m["phyOffset"] < store.segment_size_bytes]
    end = store.end_phy_offset
    room = end - end % store.segment_size_bytes + store.segment_size_bytes - end
    data, home = b"", end + 64
    for message in messages[:8]:
        record = bytearray(store.read(message["phyOffset"], message["storeSize"]))
        record[28:36] = (home + len(data)).to_bytes(8, "big")
        data += record
    assert len(data) + 128 < room
    store.write(end + 8, data)
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    opener = _opener("load-533", settings_of)
    recovery = opener.recover(store.root)
    assert recovery.after.max_phy_offset == end
    assert not any("beside their place" in note for note in recovery.notes)


def test_records_that_entries_lead_away_from_stay(
    golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """What says that it belongs into a hole, and has another place by its number's entry, is of another life of the log."""
    store = damageable("load-533", "crash")
    size = store.segment_size_bytes
    path, at = _segment(store, 3)
    start = int(path.name)
    lost = [m for m in store.truth["messages"] if start + at[40] <= m["phyOffset"] < start + at[60]]
    store.zero(start + at[40], at[60] - at[40])
    place_in_hole = start + at[42]
    others = [m for m in store.truth["messages"] if m["phyOffset"] < size][:4]
    data = b""
    for message in others:
        record = bytearray(store.read(message["phyOffset"], message["storeSize"]))
        stored = offset_in_record(message, "store_timestamp_ms")
        record[stored : stored + 8] = lost[0]["storeTimestamp"].to_bytes(8, "big")
        record[28:36] = (place_in_hole + PAGE // 8 + len(data)).to_bytes(8, "big")
        data += record
    store.write(place_in_hole, data)
    recovery = _opener("load-533", settings_of).recover(store.root)
    assert places(recovery.lost) == {place(m) for m in lost if is_queued(m)}
    assert not any("beside their place" in note for note in recovery.notes)


def test_many_bytes_are_missing(golden: GoldenStore, damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """A hundred of them, in as many places of a file."""
    store = damageable("load-533", "crash")
    path, at = _segment(store, 3)
    cuts = [(start + 84, 1) for start in at[10:210:2]]
    _edit(path, *cuts, size_bytes=store.segment_size_bytes)
    cut_at = [int(path.name) + start for start, _ in cuts]
    _assert_all_that_is_there_is_kept(store, golden("load-533"), "load-533", _opener("load-533", settings_of), cut_at)


@pytest.mark.parametrize("field", ["body", "magic"])
def test_old_records_in_a_damaged_body_stay_there(
    field: str, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    """A message whose body holds records of the log's place for which there is a hole, written long before those beside it."""
    store = damageable("load-533", "crash")
    messages = store.truth["messages"]
    first = next(n for n, m in enumerate(messages) if m["phyOffset"] > 3 * store.segment_size_bytes + 9000)
    inner, lost = b"", messages[first + 80 : first + 84]
    for message in lost:
        record = bytearray(store.read(message["phyOffset"], message["storeSize"]))
        record[28:36] = message["phyOffset"].to_bytes(8, "big")
        stored = offset_in_record(message, "store_timestamp_ms")
        record[stored : stored + 8] = (message["storeTimestamp"] - 10**9).to_bytes(8, "big")
        inner += record
    # In the place of some records behind it, as it would be in a body whose checksum is wrong.
    end = messages[first]["phyOffset"] + messages[first]["storeSize"]
    store.write(end - 40, inner)
    store.flip(first, field)
    store.zero(lost[0]["phyOffset"], sum(m["storeSize"] for m in lost))
    shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    recovery = _opener("load-533", settings_of).recover(store.root)
    assert {place(m) for m in lost if is_queued(m)} <= places(recovery.lost)
    assert not any("beside their place" in note for note in recovery.notes)
