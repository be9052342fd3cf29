"""Copies of one broker's log are recognised, and others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path

import pytest

from store_core.layout import paths
from store_core.read import log_copies
from store_core.read.log_copies import Copies, Frames, Log, Parted, common_history, find_copies, joint_settings
from store_core.storage.store import Store
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to

DamageableStore = Callable[..., Damageable]


def lag(store: Damageable, record: int) -> Damageable:
    """A copy that has received everything in front of a record; its broker has made a file in advance."""
    at = store.message(record)["phyOffset"]
    size = store.segment_size_bytes
    number = next(n for n, path in enumerate(store.segments) if int(path.name) + size > at)
    store.zero(at, int(store.segments[number].name) + size - at)
    for path in store.segments[number + 1 :]:
        path.unlink()
    (store.root / paths.COMMITLOG / paths.segment_name((at // size + 1) * size)).write_bytes(bytes(size))
    return store


def expire(store: Damageable, segments: int) -> Damageable:
    """A copy whose oldest files have been removed."""
    for path in store.segments[:segments]:
        path.unlink()
    return store


@contextmanager
def opened(stores: Sequence[Damageable]) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Store.open(store.root)) for store in stores]


def groups(*stores: Damageable, names: Sequence[str | None] = ()) -> Copies:
    with opened(stores) as each:
        return find_copies(each, names)


def joint(*stores: Damageable) -> list[tuple[int, int]]:
    """Which store each segment of the joint log is read from: (number of the segment, number of the store)."""
    with opened(stores) as each:
        settings = joint_settings(each)
    with Store.open(settings.root, settings) as store:
        size = store.log.file_size_bytes
        found = [(segment.phy_offset // size, segment.path.parent.parent) for segment in store.log.segments]
    return [(number, [s.root for s in stores].index(root)) for number, root in found]


@pytest.fixture
def master(damageable: DamageableStore) -> Damageable:
    return damageable("load-533")


@pytest.fixture
def slave(damageable: DamageableStore) -> Damageable:
    return damageable("load-533")


def test_a_slave_that_lags(master: Damageable, slave: Damageable) -> None:
    lag(slave, 1500)
    assert groups(master, slave) == Copies(((0, 1),))
    assert groups(slave, master) == Copies(((1, 0),))  # who goes furthest comes first
    assert joint(master, slave) == [(number, 0) for number in range(8)]


def test_a_slave_that_lags_by_one_record(master: Damageable, slave: Damageable) -> None:
    lag(slave, -1)
    assert groups(slave, master) == Copies(((1, 0),))
    assert joint(master, slave) == [(number, 0) for number in range(8)] + [(8, 1)]  # made in advance


@pytest.mark.parametrize("lost_bytes", [1, 10, 60])
@pytest.mark.parametrize("records", [20, 1500, 2183])
def test_a_last_record_that_is_torn_behind_its_body(
    master: Damageable, slave: Damageable, lost_bytes: int, records: int
) -> None:
    """No checksum is there: what lost its end in a crash is no record of another history, and the other copy is taken."""
    last = slave.message(records - 1)
    if records < len(slave.truth["messages"]):
        lag(slave, records)
    slave.zero(last["phyOffset"] + last["storeSize"] - lost_bytes, lost_bytes)
    assert groups(slave, master) == Copies(((1, 0),))
    assert groups(master, slave) == Copies(((0, 1),))
    assert joint(master, slave)[:8] == [(number, 0) for number in range(8)]


def test_a_record_that_is_torn_where_the_other_log_ends(master: Damageable, slave: Damageable) -> None:
    """The log that goes on is read, with the record as it has it: that is told."""
    lag(slave, 1500)
    last = slave.message(1499)
    size = last["storeSize"]
    master.zero(last["phyOffset"] + size - 60, 60)
    for stores, group in (((master, slave), (0, 1)), ((slave, master), (1, 0))):
        assert groups(*stores) == Copies((group,), differing={group: ((last["phyOffset"], size),)})


@pytest.mark.parametrize("records", [1500, 2183])
def test_a_last_record_whose_properties_are_damaged(master: Damageable, slave: Damageable, records: int) -> None:
    """It is the same message, by its head and its body's checksum, and no other history; which of them is damaged, nobody knows."""
    if records < len(slave.truth["messages"]):
        lag(slave, records)
    last = slave.message(records - 1)
    slave.flip(record=records - 1, field="properties", byte=3)
    told = ((last["phyOffset"], last["storeSize"]),)
    assert groups(master, slave) == Copies(((0, 1),), differing={(0, 1): told})
    other = (0, 1) if records == len(slave.truth["messages"]) else (1, 0)
    assert groups(slave, master) == Copies((other,), differing={other: told})


def test_a_slave_with_older_records_than_its_master(master: Damageable, slave: Damageable) -> None:
    expire(master, 3)
    lag(slave, 1500)
    assert groups(slave, master) == Copies(((1, 0),))
    assert joint(master, slave) == [(0, 1), (1, 1), (2, 1), *((number, 0) for number in range(3, 8))]


def test_a_file_that_is_missing_or_short(master: Damageable, slave: Damageable) -> None:
    master.lose(segment=4)
    master.cut(segment=2, size_bytes=5000)
    assert groups(master, slave) == Copies(((0, 1),))
    assert joint(master, slave) == [(n, 1 if n in (2, 4) else 0) for n in range(8)]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_damage_in_either_does_not_part_them(master: Damageable, slave: Damageable, at_the_end: bool) -> None:
    for store, segment in ((master, 2), (slave, 5)):
        store.zero(segment * store.segment_size_bytes, 5000)
    slave.flip(record=-1 if at_the_end else 700, field="body")
    master.flip(record=-2 if at_the_end else 0, field="magic")
    assert groups(master, slave) == Copies(((0, 1),))


def test_three_of_one_and_one_of_another(master: Damageable, slave: Damageable, damageable: DamageableStore) -> None:
    third, other = expire(damageable("load-533"), 4), damageable("crash-533")
    lag(slave, 500)  # has no segment in common with the third
    assert groups(master, other, slave, third) == Copies(((0, 3, 2), (1,)))


def test_other_brokers_have_other_records_at_the_same_offsets(master: Damageable, damageable: DamageableStore) -> None:
    other = damageable("crash-533")
    assert other.segment_size_bytes == master.segment_size_bytes
    assert groups(master, other) == Copies(((0,), (1,)))
    assert groups(master, other, names=["a", "a"]) == Copies(((0,), (1,)))


@pytest.mark.parametrize("record", [-1, 1999, 1000])
def test_logs_that_have_parted_are_no_copies(master: Damageable, slave: Damageable, record: int) -> None:
    """From a record on everything is as another master would have written it: the same but for one byte of each."""
    last = len(slave.truth["messages"])
    for number in range(record % last, last):
        slave.flip(record=number, field="store_timestamp_ms", byte=7)
    found = groups(master, slave)
    assert found.groups == ((0,), (1,))
    [parted] = found.parted
    assert (parted.first, parted.second) == (0, 1)
    assert parted.phy_offset >= master.message(record)["phyOffset"]


@pytest.mark.parametrize("record", [30, 700, 2100])
def test_the_common_history_ends_with_the_last_common_record(
    record: int, master: Damageable, slave: Damageable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are small here, so that the place lies between those that are looked at first."""
    monkeypatch.setattr(log_copies, "_WINDOWS_BYTES", (2048, 4096, 8192))
    for number in range(record, len(slave.truth["messages"])):
        slave.flip(record=number, field="store_timestamp_ms", byte=7)
    with opened([master, slave]) as (first, second):
        found = common_history(Log(first), Log(second))
    places = [int(master.message(number)["phyOffset"]) for number in (record - 1, record)]
    assert [found.last_same, found.parted_at] == places


@pytest.mark.leaves_damage("the slave lags behind its queues")
def test_tombstones_at_the_end_are_no_other_history(
    master: Damageable, slave: Damageable, settings_of: Callable[[str], Path]
) -> None:
    """The slave was mended: tombstones stand for the last records that it has, and the master has these records."""
    lost = [master.message(number) for number in (1000, 1001)]
    slave.zero(lost[0]["phyOffset"], sum(record["storeSize"] for record in lost))
    opener = Opener(settings_of("load-533"), "5.3.3")
    assert apply_to(opener.recover(slave.root), slave.root) is not None
    lag(slave, 1002)
    told = tuple((record["phyOffset"], record["storeSize"]) for record in lost)
    assert groups(master, slave) == Copies(((0, 1),), differing={(0, 1): told})


def test_nothing_in_common_tells_nothing(master: Damageable, slave: Damageable) -> None:
    expire(master, 4)
    lag(slave, 800)
    assert slave.message(800)["phyOffset"] < 4 * master.segment_size_bytes - master.segment_size_bytes
    assert groups(master, slave) == Copies(((0,), (1,)))
    assert groups(master, slave, names=["a", "b"]) == Copies(((0,), (1,)))
    assert groups(master, slave, names=["a", "a"]) == Copies(((0, 1),))


def test_an_empty_log_is_a_copy_of_nothing(master: Damageable, slave: Damageable) -> None:
    for path in slave.segments:
        path.write_bytes(bytes(slave.segment_size_bytes))
    assert groups(master, slave) == Copies(((0,), (1,)))


def test_a_store_given_twice_is_its_own_copy(master: Damageable, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(master.root)
    assert groups(master, Damageable(link, master.truth)) == Copies(((0, 1),))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_two_copies_without_a_common_file_are_joined_by_a_third(
    damageable: DamageableStore, order: tuple[int, ...]
) -> None:
    """An old backup, a slave, and a master whose oldest files have gone: in any order they are one log."""
    stores = [damageable("load-533") for _ in range(3)]
    for store, has in zip(stores, (range(4), range(2, 7), range(5, 8)), strict=True):
        for number, path in enumerate(store.segments):
            if number not in has:
                path.unlink()
    [group] = groups(*(stores[number] for number in order)).groups
    assert sorted(group) == [0, 1, 2]
    assert joint(*(stores[order[number]] for number in group))[-1] == (7, 0)


def test_a_record_of_one_log_alone_is_not_lost_for_a_fault_behind_it(master: Damageable, slave: Damageable) -> None:
    """A master had written two more records when a slave took over; the last of them has a wrong body."""
    lag(master, 1002)
    for record in (1000, 1001):
        master.flip(record=record, field="store_timestamp_ms", byte=7)
    master.flip(record=1001, field="body")
    found = groups(master, slave)
    assert found.groups == ((0,), (1,))
    assert found.parted == (Parted(0, 1, master.message(1000)["phyOffset"]),)


@pytest.mark.parametrize("record", [0, 1, 700, -2])
def test_records_that_differ_do_not_part_logs_that_are_the_same_behind(
    master: Damageable, slave: Damageable, record: int
) -> None:
    """Whole and other in both: nobody can say which one is right, but all around it is one log."""
    slave.flip(record=record, field="store_timestamp_ms", byte=7)
    at = master.message(record)
    assert groups(master, slave) == Copies(((0, 1),), differing={(0, 1): ((at["phyOffset"], at["storeSize"]),)})


def test_what_differs_in_front_of_where_they_part_is_not_where(master: Damageable, slave: Damageable) -> None:
    for record in (0, *range(2000, 2183)):
        slave.flip(record=record, field="store_timestamp_ms", byte=7)
    found = groups(master, slave)
    assert found.groups == ((0,), (1,))
    assert found.parted[0].phy_offset >= master.message(2000)["phyOffset"]


def test_all_that_differs_is_told_where_a_segment_has_nothing_in_common(master: Damageable, slave: Damageable) -> None:
    size = master.segment_size_bytes
    inside = [n for n, message in enumerate(master.truth["messages"]) if message["phyOffset"] // size == 4]
    for record in inside[:6]:
        slave.flip(record=record, field="store_timestamp_ms", byte=7)
    rest = slave.message(inside[6])["phyOffset"]
    slave.zero(rest, 5 * size - rest)
    records = [master.message(record) for record in inside[:5]]  # damage follows the sixth at once
    told = tuple((record["phyOffset"], record["storeSize"]) for record in records)
    assert groups(master, slave) == Copies(((0, 1),), differing={(0, 1): told})


def test_logs_of_many_brokers_are_read_once_each(damageable: DamageableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compared with each other one, at a place that all have."""
    reads: list[tuple[int, int]] = []
    real = Log._frames_in

    def frames_in(self: Log, start: int, stop: int) -> Frames:
        reads.append((start, stop))
        return real(self, start, stop)

    monkeypatch.setattr(Log, "_frames_in", frames_in)
    stores = [damageable(name) for name in ("load-533", "load-497", "clean-533", "clean-540", "clean-497", "crash-533")]
    found = groups(*stores)
    assert found.groups == tuple((number,) for number in range(len(stores)))
    assert len(reads) <= len(stores)
