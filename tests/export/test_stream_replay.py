"""A batch that was planned when a query ended is read by the next one before all else, and never again: it must be what was meant."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from store_core.errors import FailedError, UsageError
from store_core.export.source.data_source import StreamReader
from store_core.export.source.offsets import Last, Span, end_of, first_offset, last_of, offset_after, spans_between
from store_core.export.source.options import parse_options
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.streams import Stream, told
from tests.export.test_splits import SEGMENT_BYTES

OFFSETS = [offset for offset, _ in told("load-533")]


def offsets_of(stream: Stream) -> list[int]:
    return [row[0] for row in stream.rows]


def test_offsets_tell_the_begin_where_the_one_before_does_not() -> None:
    begun = first_offset(5)
    assert begun == {"begin": 5}
    nothing = offset_after(begun, Span(5, 5))
    assert nothing == {"begin": 5, "end": 5}, "a batch, that keeps the begin"
    assert offset_after(nothing, Span(5, 5)) is nothing, "nothing new is no batch"
    first = offset_after(begun, Span(5, 9))
    assert first == {"begin": 5, "end": 9} == offset_after(None, Span(5, 9)) == offset_after(nothing, Span(5, 9))
    assert offset_after(first, Span(9, 9)) is first
    assert offset_after(first, Span(9, 12)) == 12
    assert offset_after(12, Span(12, 12)) == 12
    assert offset_after(12, Span(7, 7)) == {"begin": 7, "end": 7}, "a stream that goes back says so at once"
    assert [end_of(offset) for offset in (begun, nothing, first, 12)] == [5, 5, 9, 12]
    assert spans_between({"a": begun}, {"a": nothing}) == {}
    assert spans_between({"a": begun}, {"a": first}) == {"a": (5, 9)}
    assert spans_between({"a": first_offset(8)}, {"a": first}) == {"a": (5, 9)}, "as the batch was planned"
    after = {"a": 12, "b": 3, "c": {"begin": 0, "end": 4}}
    assert spans_between({"a": first, "b": 3}, after) == {"a": (9, 12), "c": (0, 4)}
    assert spans_between({"a": first}, {"a": first}) == {}
    last = Last(15, 5, 99, 7)
    with_last = offset_after(12, Span(12, 20), last)
    told = {"last_phy_offset": 15, "last_size_bytes": 5, "last_crc32c": 99, "last_store_timestamp_ms": 7}
    assert with_last == {"end": 20, **told}
    assert (end_of(with_last), last_of(with_last), last_of(12)) == (20, last, None)
    assert offset_after(with_last, Span(20, 20), last) is with_last
    assert spans_between({"a": 12}, {"a": with_last}) == {"a": (12, 20)}


@pytest.mark.parametrize(
    "offset",
    [
        *(
            "x",
            None,
            -5,
            1.5,
            True,
            {},
            {"end": "x"},
            {"last_phy_offset": 4},
            {"end": 5, "start": 1},
            {"begin": -1},
            [5],
        ),
        {"end": 9, "last_phy_offset": 4, "last_size_bytes": 5},
        {"end": 9, **dict(Last(5, 5, 1, 1)._asdict())},
        {"end": 9, **{f"last_{name}": n for name, n in Last(5, 5, 1, 1)._asdict().items()}},
        {"end": 9, **{f"last_{name}": n for name, n in Last(5, 0, 1, 1)._asdict().items()}},
    ],
)
def test_an_offset_that_no_stream_has_written(golden: GoldenStore, offset: object) -> None:
    stream = Stream(golden("load-533"))
    stream.offsets = {"a": offset}  # type: ignore[dict-item]  # as a checkpoint may hold it
    with pytest.raises(FailedError, match=r"the checkpoint's offset of a is damaged: .*another checkpoint"):
        stream.poll()


def test_a_first_batch_keeps_its_begin(golden: GoldenStore) -> None:
    """Spark keeps only its end, and asks anew where the stream begins."""
    stream = Stream(golden("load-533"))
    end = stream.plan()
    stream.restart(startingOffset="latest")
    stream.offsets = stream.reader.initialOffset()
    stream.read(end)
    stream.drain()
    assert offsets_of(stream) == OFFSETS


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_first_batch_of_what_has_expired(damageable: Callable[..., Damageable], fails: str) -> None:
    store = damageable("load-533")
    stream = Stream(store.root, failOnDataLoss=fails)
    end = stream.plan()
    store.segments[0].unlink()
    stream.restart()
    stream.offsets = stream.reader.initialOffset()
    if fails == "true":
        with pytest.raises(FailedError, match=f"has read a up to 0, and the log begins at {SEGMENT_BYTES}"):
            stream.read(end)
    else:
        stream.read(end)
        assert offsets_of(stream) == [offset for offset in OFFSETS if offset >= SEGMENT_BYTES]


def test_the_first_batch_of_a_store_that_joins_keeps_its_begin(
    damageable: Callable[..., Damageable], golden: GoldenStore
) -> None:
    store = damageable("load-533")
    stream = Stream(golden("ipv6-533"))
    stream.drain()
    stream.restart(path=f"a={golden('ipv6-533')},b={store.root}")
    end = stream.plan()
    assert isinstance(end["b"], dict)
    assert (end["b"]["begin"], end["b"]["end"]) == (0, Stream(store.root, startingOffset="latest").at)
    store.segments[0].unlink()
    stream.restart()
    with pytest.raises(FailedError, match="has read b up to 0, and the log begins"):
        stream.read(end)


@pytest.fixture
def pending(damageable: Callable[..., Damageable]) -> tuple[Damageable, Stream]:
    store = damageable("load-533")
    stream = Stream(store.root, maxBytesPerTrigger=3 * SEGMENT_BYTES)
    stream.poll()
    return store, stream


@pytest.mark.parametrize("gone", [slice(3, 4), slice(4, 5), slice(4, None), slice(3, None), slice(5, 6)])
def test_segments_of_a_planned_batch_that_are_gone(
    pending: tuple[Damageable, Stream], tmp_path: Path, gone: slice
) -> None:
    store, stream = pending
    end = stream.plan()
    away = store.segments[gone]
    for segment in away:
        shutil.move(segment, tmp_path)
    stream.restart()
    with pytest.raises(FailedError, match=r"is missing or incomplete|the log ends before it"):
        stream.read(end)
    for segment in away:
        shutil.move(tmp_path / segment.name, segment)
    stream.restart()
    stream.read(end)
    stream.drain()
    assert offsets_of(stream) == OFFSETS


def test_a_log_cut_inside_a_planned_batch(pending: tuple[Damageable, Stream]) -> None:
    store, stream = pending
    end = stream.plan()
    at = next(offset for offset in OFFSETS if offset > 5 * SEGMENT_BYTES + 20_000)
    for segment in store.segments[6:]:
        segment.unlink()
    store.zero(at, 6 * SEGMENT_BYTES - at)
    stream.restart()
    with pytest.raises(FailedError, match="the log ends before it"):
        stream.read(end)
    stream.restart(failOnDataLoss="false")
    stream.read(end)
    assert offsets_of(stream) == [offset for offset in OFFSETS if offset < at]


def test_a_planned_batch_of_a_store_of_another_name_or_of_none(
    pending: tuple[Damageable, Stream], golden: GoldenStore
) -> None:
    store, stream = pending
    end = stream.plan()
    stream.restart(path=f"b={store.root}")
    with pytest.raises(UsageError, match="has read a, and b stands in its place"):
        stream.read(end)
    stream.restart(path=f"a={store.root},b={golden('ipv6-533')}")
    stream.read(end)
    end = stream.plan()
    assert set(end) == {"a", "b"}
    stream.restart(path=f"b={golden('ipv6-533')}")
    with pytest.raises(UsageError, match="has a batch that is not done and reads a, which is not named"):
        stream.read(end)
    stream.restart(failOnDataLoss="false")
    stream.read(end)


def test_a_log_folder_that_is_away_when_a_planned_batch_is_read(
    damageable: Callable[..., Damageable], tmp_path: Path
) -> None:
    store = damageable("load-533")
    other = tmp_path / "other"
    other.mkdir()
    config = tmp_path / "broker.conf"
    config.write_text(f"storePathRootDir={store.root}\nstorePathCommitLog={store.root}/commitlog,{other}\n")
    for segment in store.segments[4:]:
        shutil.move(segment, other)
    stream = Stream(store.root, config=str(config))
    end = stream.plan()
    other.rename(tmp_path / "away")
    stream.restart()
    with pytest.raises(FailedError, match=r"log folder is not there.*mount"):
        stream.read(end)
    (tmp_path / "away").rename(other)
    stream.restart()
    stream.read(end)
    assert offsets_of(stream) == OFFSETS


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_missing_segment_is_not_passed_in_silence(
    damageable: Callable[..., Damageable], tmp_path: Path, fails: str, *, restarts: bool
) -> None:
    """Whoever copies a log piece by piece may bring a later one first."""
    store = damageable("load-533")
    away = store.segments[2:]
    for segment in away:
        shutil.move(segment, tmp_path)
    stream = Stream(store.root, failOnDataLoss=fails)
    stream.drain()
    assert stream.at == 2 * SEGMENT_BYTES
    for segment in away[1:]:
        shutil.move(tmp_path / segment.name, segment)
    if restarts:
        stream.restart()
    if fails == "false":
        stream.drain()
        assert offsets_of(stream) == [at for at in OFFSETS if not 2 * SEGMENT_BYTES <= at < 3 * SEGMENT_BYTES]
        return
    with pytest.raises(
        FailedError, match=f"up to {2 * SEGMENT_BYTES}, and the segment that goes on there is missing.*: bring"
    ):
        stream.drain()
    shutil.move(tmp_path / away[0].name, away[0])
    stream.drain()
    assert offsets_of(stream) == OFFSETS


@pytest.mark.parametrize("size", [0, 20, 50_000])
@pytest.mark.parametrize("limit", [5000, 1 << 30])
def test_a_segment_that_is_not_all_there_is_not_passed_in_silence(
    damageable: Callable[..., Damageable], size: int, limit: int
) -> None:
    store = damageable("load-533")
    short = store.segments[2]
    kept = short.read_bytes()
    short.write_bytes(kept[:size])
    stream = Stream(store.root, maxBytesPerTrigger=limit)
    for _ in range(2):
        with pytest.raises(
            FailedError, match=r"up to \d+, and the segment that goes on there is missing or incomplete"
        ):
            stream.drain()
        stream.restart()
    there = [at for at in OFFSETS if at < 2 * SEGMENT_BYTES + size]
    assert offsets_of(stream) == there[: len(stream.rows)]
    assert len(there) - len(stream.rows) <= 1, "all but the record that the file ends in"
    lenient = Stream(store.root, maxBytesPerTrigger=limit, failOnDataLoss="false")
    lenient.drain()
    gone = [at for at in OFFSETS if at not in offsets_of(lenient)]
    assert gone[0] >= 2 * SEGMENT_BYTES
    assert gone[-1] < 3 * SEGMENT_BYTES
    short.write_bytes(kept)
    stream.drain()
    assert offsets_of(stream) == OFFSETS


def test_a_segment_that_has_lost_its_end_when_a_planned_batch_is_read(pending: tuple[Damageable, Stream]) -> None:
    store, stream = pending
    end = stream.plan()
    short = store.segments[4]
    kept = short.read_bytes()
    parts = stream.reader.partitions(stream.offsets, end)
    short.write_bytes(kept[:50_000])
    with pytest.raises(FailedError, match="a segment went away before it was read"):
        [batch for part in parts for batch in stream.reader.read(part)]
    stream.restart()
    with pytest.raises(FailedError, match="is missing or incomplete"):
        stream.read(end)
    short.write_bytes(kept)
    stream.read(end)
    stream.drain()
    assert offsets_of(stream) == OFFSETS


@pytest.mark.parametrize("restarts", [False, True])
def test_a_last_file_that_is_cut_short(one_segment: Damageable, *, restarts: bool) -> None:
    """As by a copy or a tool that truncates; a broker leaves zeros."""
    stands, cut = (one_segment.message(record)["phyOffset"] for record in (300, 250))
    file = one_segment.segments[0]
    kept = file.read_bytes()
    file.write_bytes(kept[:stands])
    stream = Stream(one_segment.root)
    stream.drain()
    assert stream.at == stands
    if restarts:
        stream.restart()
        assert not stream.poll(), "all of it is there"
        stream.restart()
    file.write_bytes(kept[:cut])
    with pytest.raises(FailedError, match="cut"):
        stream.poll()
    stream.restart(failOnDataLoss="false")
    stream.drain()
    assert stream.at == cut
    file.write_bytes(kept)
    stream.drain()
    assert offsets_of(stream)[300:] == [at for at, _ in told("load-533") if cut <= at < SEGMENT_BYTES]


@pytest.mark.parametrize(
    "options", [{"failOnDataLoss": "false"}, {"table": "quarantine", "columns": "phy_offset,kind"}]
)
def test_one_record_behind_a_gap_that_is_larger_than_a_batch(
    damageable: Callable[..., Damageable], options: dict[str, str]
) -> None:
    store = damageable("load-533")
    for segment in [store.segments[1], *store.segments[3:]]:
        segment.unlink()
    behind = [at for at in OFFSETS if at >= 2 * SEGMENT_BYTES]
    store.zero(behind[1], 3 * SEGMENT_BYTES - behind[1])
    stream = Stream(store.root, maxBytesPerTrigger=5000, **options)
    stream.drain()
    assert stream.at == behind[1]


def test_a_missing_segment_in_front_of_one_made_ahead_is_waited_for(damageable: Callable[..., Damageable]) -> None:
    """Nothing is written behind it: it is the next one to come."""
    store = damageable("load-533")
    missing, ahead, *others = store.segments[3:]
    kept = {segment: segment.read_bytes() for segment in (missing, ahead, *others)}
    for segment in (missing, *others):
        segment.unlink()
    ahead.write_bytes(bytes(SEGMENT_BYTES))
    streams = [Stream(store.root, failOnDataLoss=fails) for fails in ("true", "false")]
    ranges = Stream(store.root, table="quarantine", columns="phy_offset,kind")
    for stream in (*streams, ranges):
        stream.drain()
        stream.restart()
        stream.drain()
        assert stream.at == 3 * SEGMENT_BYTES
    for segment, data in kept.items():
        segment.write_bytes(data)
    for stream in streams:
        stream.drain()
        assert offsets_of(stream) == OFFSETS


def test_a_listing_that_lacks_a_file_for_a_moment(
    damageable: Callable[..., Damageable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that come and go while a folder is listed may be left out; a second look finds them."""
    store = damageable("load-533")
    for fails, number in (("true", 3), ("false", 3), ("false", slice(4, None))):
        away = store.segments[number] if isinstance(number, slice) else [store.segments[number]]
        stream = Stream(store.root, failOnDataLoss=fails, maxBytesPerTrigger=4 * SEGMENT_BYTES)
        if isinstance(number, slice):
            stream.poll()
            stream.poll()
        kept = {segment: segment.read_bytes() for segment in away}
        for segment in away:
            segment.unlink()

        def back(_: float, kept: dict[Path, bytes] = kept) -> None:
            for segment, data in kept.items():
                segment.write_bytes(data)

        with monkeypatch.context() as patch:
            clock = SimpleNamespace(sleep=back, monotonic=time.monotonic)  # others in this process sleep, too
            patch.setattr("store_core.export.source.stream_progress.time", clock)
            stream.drain()
        stream.drain()
        assert offsets_of(stream) == OFFSETS


def test_a_log_that_is_empty_now_is_an_error(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    stream = Stream(store.root)
    stream.drain()
    kept = {segment: segment.read_bytes() for segment in store.segments}
    for segment in kept:
        segment.unlink()
    with pytest.raises(FailedError, match="the log is empty"):
        stream.poll()
    stream.restart(failOnDataLoss="false")
    stream.drain()
    for segment, data in kept.items():
        segment.write_bytes(data)
    stream.drain()
    assert offsets_of(stream) == OFFSETS, "its disk was away"
    for segment in kept:
        segment.unlink()
    stream.drain()
    for segment, data in kept.items():
        segment.write_bytes(data)
    store.flip(len(OFFSETS) - 1, "store_timestamp_ms", 7)
    stream.drain()
    assert offsets_of(stream) == [*OFFSETS, *OFFSETS], "another log, read from its begin"


@pytest.mark.parametrize("limit", [5000, 70_000, 1 << 30])
def test_a_hole_of_a_whole_batch_is_in_the_quarantine(damageable: Callable[..., Damageable], limit: int) -> None:
    store = damageable("load-533")
    first, second, *_ = store.segments
    second.unlink()
    at = next(offset for offset in OFFSETS if offset > 50_000)
    with first.open("r+b") as file:
        file.truncate(at)
    stream = Stream(
        store.root, table="quarantine", columns="phy_offset,size_bytes,kind,finding", maxBytesPerTrigger=limit
    )
    stream.drain()
    holes = [row for row in stream.rows if row[2] == "hole"]  # type: ignore[misc]  # rows of the quarantine
    assert sum(size for _, size, *_ in holes) >= SEGMENT_BYTES  # type: ignore[misc]
    assert (SEGMENT_BYTES, SEGMENT_BYTES, "hole", "L006") in holes  # type: ignore[comparison-overlap]


def test_a_reader_of_a_stream_is_made_without_a_look_at_the_stores() -> None:
    """PySpark 4.3 ends with an error of its own where that raises."""
    reader = StreamReader(parse_options({"path": "a=/nowhere,a=/elsewhere", "fromOffset": "5"}))
    with pytest.raises(UsageError, match="fromOffset and toOffset are for batches"):
        reader.initialOffset()
