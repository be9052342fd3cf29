"""A log to which somebody writes while it is walked: whoever looks at a row for long misses nothing behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from store_core.codec.record import Message
from store_core.export.query.catalog import Tables
from store_core.export.tables import messages
from store_core.export.tables.messages import MessagesTable
from store_core.kernel.codes import FrameKind
from store_core.layout.paths import LOCK
from store_core.read.log import LogFilter, read_log
from store_core.scan import log
from store_core.scan import reread_live as settled
from store_core.scan.frames import FrameTable
from store_core.scan.log import ScanOptions, log_tables, scan_log
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests.beside import another_process
from tests.conftest import DamagedStore, StoreCopy
from tests.damage import Damageable
from tests.export.test_incremental import ENDS, OFFSETS, SEGMENT_SIZE_BYTES, STORE, Growing
from tests.export.test_query import ask
from tests.scan.test_log import DAMAGED, SEGMENT, columns

SettingsOf = Callable[[str], Path]
WINDOW_SIZE_BYTES = 5_000
ROLLS = next(
    number for number, end in enumerate(ENDS) if end > SEGMENT_SIZE_BYTES
)  # the first record of the second segment


@pytest.fixture
def rolling(store_copy: StoreCopy) -> Growing:
    """A log that ends three records in front of its second segment, which is there already."""
    growing = Growing(store_copy(STORE))
    growing.end_at(ENDS[ROLLS - 4])
    (growing.root / "commitlog" / f"{SEGMENT_SIZE_BYTES:020d}").write_bytes(bytes(SEGMENT_SIZE_BYTES))
    return growing


@pytest.fixture
def always_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "is_locked", lambda _: True)


def locked(root: Path) -> AbstractContextManager[None]:
    """Another process has the store's lock, as a broker does."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1)"
    return another_process(code, root / LOCK)


def opened(root: Path) -> Store:
    return Store.open(root, load_settings(None, root))


def going_on(tables: Iterator[FrameTable], growing: Growing, ends: list[int]) -> list[FrameTable]:
    """The tables; each time a record has been given the log has grown by the time the next table is asked for."""
    found = []
    for table in tables:
        found.append(table)
        if table.messages.any() and ends:
            growing.end_at(ends.pop(0))
    return found


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_log_that_rolls_over_between_two_tables(rolling: Growing, jobs: int) -> None:
    with locked(rolling.root), opened(rolling.root) as store:
        tables = scan_log(store, options=ScanOptions(jobs=jobs))
        found = going_on(tables, rolling, [ENDS[ROLLS + 5]])
        assert [int(at) for table in found for at in table.phy_offset[table.messages]] == OFFSETS[: ROLLS + 6]
        assert [int(kind) for table in found for kind in table.kind if kind][:-1] == [FrameKind.BLANK]


def test_a_log_that_grows_within_a_segment_of_zeros(rolling: Growing) -> None:
    """Window by window, the log is always a little longer than when the last one was read."""
    steps = [ENDS[number] for number in range(ROLLS - 4, len(ENDS), 3)]
    rolling.end_at(ENDS[3])
    with locked(rolling.root), opened(rolling.root) as store:
        options = ScanOptions(window_size_bytes=WINDOW_SIZE_BYTES)
        tables = going_on(scan_log(store, options=options), rolling, steps)
        offsets = [int(at) for table in tables for at in table.phy_offset[table.messages]]
        assert offsets == OFFSETS[: len(offsets)]
        assert len(offsets) > ROLLS - 5
        assert {int(kind) for table in tables for kind in table.kind} <= {
            FrameKind.MESSAGE,
            FrameKind.BLANK,
            FrameKind.ZEROS,
        }


def test_a_record_that_was_half_there(rolling: Growing) -> None:
    """Its body does not match; by the time there is one behind it, it does."""
    path = rolling.root / "commitlog" / f"{0:020d}"
    good, last = path.read_bytes(), ROLLS - 4
    path.write_bytes(good[: OFFSETS[last] + 100] + bytes(2) + good[OFFSETS[last] + 102 :])
    with locked(rolling.root), opened(rolling.root) as store:
        tables = going_on(scan_log(store), rolling, [ENDS[ROLLS]])
        assert [int(at) for table in tables for at in table.phy_offset[table.messages]] == OFFSETS[: ROLLS + 1]
        assert not any(table.code.any() for table in tables)


def test_records_in_a_pager(rolling: Growing) -> None:
    with locked(rolling.root), opened(rolling.root) as store:
        rows = read_log(store, LogFilter(with_ranges=True))
        found = [next(rows)]
        rolling.end_at(ENDS[ROLLS + 5])
        found += rows
        assert [row.phy_offset for row in found if isinstance(row, Message)] == OFFSETS[: ROLLS + 6]
        assert [row.kind for row in found if not isinstance(row, Message)] == ["blank", "zeros"]


def test_rows_of_a_query(rolling: Growing) -> None:
    with locked(rolling.root), opened(rolling.root) as store:
        table = MessagesTable([("s", store)])
        batches = iter(table.batches(["phy_offset"]))
        found = next(batches)["phy_offset"].to_pylist()
        rolling.end_at(ENDS[ROLLS + 5])
        found += [at for batch in batches for at in batch["phy_offset"].to_pylist()]
        assert found == OFFSETS[: ROLLS + 6]
        assert table.findings == []


@pytest.mark.product(6)
@pytest.mark.usefixtures("always_live")
@pytest.mark.parametrize("window_size_bytes", [WINDOW_SIZE_BYTES, 1 << 20])
@pytest.mark.parametrize("case", DAMAGED)
def test_reading_once_more_makes_no_difference(
    case: str, window_size_bytes: int, damaged: DamagedStore, settings_of: SettingsOf
) -> None:
    """Where nothing has changed: neither from the begin nor from inside, a record's or damage's."""
    root = damaged("load-533", case)
    options = ScanOptions(index_keys=True, window_size_bytes=window_size_bytes)
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        for start in (None, *range(SEGMENT // 3, 8 * SEGMENT, SEGMENT * 4 // 5)):
            plain = columns(log_tables(store, options, start, 7 * SEGMENT))
            assert columns(scan_log(store, options=options, from_phy_offset=start, to_phy_offset=7 * SEGMENT)) == plain


def test_nothing_is_held_where_nobody_writes(damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither are windows copied nor rows late."""
    monkeypatch.setattr(settled, "_kept", None)
    with opened(damaged("load-533", "zero-page-mid")) as store:
        assert columns(scan_log(store)) == columns(log_tables(store, ScanOptions(), None, None))


def test_what_a_query_leaves_out_is_not_read_again(rolling: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment in front ends with damage, and a record follows far behind."""
    rolling.end_at(ENDS[-1])
    blank = rolling.root / "commitlog" / f"{0:020d}"
    blank.write_bytes(blank.read_bytes()[: ENDS[ROLLS - 1]].ljust(SEGMENT_SIZE_BYTES, b"\7"))
    last = OFFSETS[-1] // SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES
    walked: list[int] = []
    monkeypatch.setattr(messages, "log_tables", lambda store, options, start, *rest, **more: walked.append(start))
    query = f"select count(*) from messages where phy_offset < {SEGMENT_SIZE_BYTES} or phy_offset >= {last}"
    wanted = [at for at in OFFSETS if at < SEGMENT_SIZE_BYTES or at >= last]
    with locked(rolling.root), opened(rolling.root) as store:
        assert ask(Tables([("s", store)]), query) == [(len(wanted),)]
    assert (walked, last > 2 * SEGMENT_SIZE_BYTES) == ([], True)


@pytest.mark.usefixtures("always_live")
def test_long_damage_is_not_held(damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, and nothing is lost or comes twice."""
    store = damageable("load-533")
    for number in range(100, 400):
        store.flip(number, "body")
    kept, keep = list[FrameTable](), settled._kept

    def counted(table: FrameTable, first: int) -> FrameTable:
        kept.append(table)
        return keep(table, first)

    monkeypatch.setattr(settled, "_kept", counted)
    options = ScanOptions(window_size_bytes=WINDOW_SIZE_BYTES)
    with opened(store.root) as store_:
        plain = columns(log_tables(store_, options, None, 4 * SEGMENT))
        assert columns(scan_log(store_, options=options, to_phy_offset=4 * SEGMENT)) == plain
    assert len(kept) == settled._MOST_HELD
