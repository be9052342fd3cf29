"""Logs that were cut behind a crash and written on, so that old bytes stand where they stood, or others of the same sizes do."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, PlanOutOfDateError
from store_core.export.runners.local import LocalRunner
from store_core.export.runners.runner import OnPiece, Walked
from store_core.export.splits.plan import Split
from store_core.layout.record import MAGIC_BLANK
from store_core.storage.store import Store
from tests.damage import Damageable, offset_in_record
from tests.export.exports import export_one, table_of
from tests.export.streams import Stream
from tests.export.test_splits import SEGMENT_BYTES, record_of
from tests.refusing import failing_disk

STANDS, CUT, END = 300, 250, 309  # rows: where somebody stands, where the log was cut, where what is written anew ends


class Recording(LocalRunner):
    """Keeps what it was asked for, and how many bytes had been read of stores by then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.tasks: Sequence[Any] = ()
        self.read_before = self._read = 0
        for name in ("pread", "preadv"):
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            found = call(*given)
            self._read += found if isinstance(found, int) else len(found)
            return found

        return counted

    def run(self, tasks: Sequence[Any], on_walked: Walked, on_piece: OnPiece[Any] | None = None) -> list[Any]:
        self.tasks, self.read_before = tasks, self._read
        return super().run(tasks, on_walked, on_piece)


def at(store: Damageable, row: int) -> int:
    found: int = store.message(row)["phyOffset"]
    return found


def end_at(store: Damageable, row: int) -> None:
    store.zero(at(store, row), SEGMENT_BYTES - at(store, row))


def cut_queues(store: Damageable, first: int) -> None:
    """No queue has an entry for a row from ``first`` on."""
    for row in range(first, len(store.truth["messages"])):
        message = store.message(row)
        store.set_entry(message["topic"], message["queueId"], message["queueOffset"])


def another(store: Damageable, row: int) -> bytes:
    """A good message of the size of a row's, whose last bytes, all its properties, are the same."""
    message = store.message(row)
    raw = bytearray(store.read(message["phyOffset"], message["storeSize"]))
    begin = offset_in_record(message, "body")
    end = begin + message["bodyLength"]
    raw[begin:end] = bytes(byte ^ 1 for byte in raw[begin:end])
    struct.pack_into(">i", raw, offset_in_record(message, "body_crc"), zlib.crc32(bytes(raw[begin:end])) & 0x7FFFFFFF)
    times = offset_in_record(message, "store_timestamp_ms")
    struct.pack_into(">q", raw, times, struct.unpack_from(">q", raw, times)[0] + 60_000)
    return bytes(raw)


def write_blank(store: Damageable, phy_offset: int) -> None:
    """As brokers write it: its head, and nothing of what it covers."""
    store.write(phy_offset, struct.pack(">ii", SEGMENT_BYTES - phy_offset, MAGIC_BLANK))


def written_over_with_a_blank(store: Damageable) -> None:
    """The log was cut, five messages were written, the next one did not fit, and went to a new segment."""
    place = at(store, CUT)
    for row in range(5):
        store.write(place, record_of(store, row, place))
        place += store.message(row)["storeSize"]
    write_blank(store, place)
    assert place < at(store, STANDS - 1), "it covers what was last"
    following = record_of(store, 0, SEGMENT_BYTES).ljust(SEGMENT_BYTES, b"\0")
    (store.root / "commitlog" / f"{SEGMENT_BYTES:020d}").write_bytes(following)
    cut_queues(store, CUT)


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_others_of_the_same_sizes(one_segment: Damageable, restarted: bool, has_queues: bool, fails: str) -> None:
    """Where the stream stands a frame ends as before, and the bytes in front of it are the same as far as properties go."""
    anew = {row: another(one_segment, row) for row in range(CUT, END)}
    end_at(one_segment, STANDS)
    if not has_queues:
        cut_queues(one_segment, 0)
    stream = Stream(one_segment.root, failOnDataLoss=fails)
    stream.drain()
    assert stream.at == at(one_segment, STANDS)
    for row, raw in anew.items():
        one_segment.write(at(one_segment, row), raw)
    if restarted:
        stream.restart()
    taken = len(stream.rows)
    if fails == "true":
        for _ in range(2):  # whoever starts it again is told again
            with pytest.raises(FailedError, match="the log has been cut before it"):
                stream.poll()
            stream.restart()
        return
    stream.drain()
    assert [row[0] for row in stream.rows[taken:]] == [at(one_segment, row) for row in range(STANDS, END)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_whose_last_record_a_blank_covers(one_segment: Damageable, restarted: bool) -> None:
    end_at(one_segment, STANDS)
    stream = Stream(one_segment.root)
    stream.drain()
    written_over_with_a_blank(one_segment)
    if restarted:
        stream.restart()
    with pytest.raises(FailedError, match=r"has read a up to .*cut"):
        stream.poll()


def fill(store: Damageable, ends: int | None) -> None:
    """Have the segment full, with a blank behind a row's place where one is named."""
    if ends is not None:
        place = at(store, ends)
        end_at(store, ends)
        write_blank(store, place)


@pytest.mark.parametrize("ends", [STANDS, None])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_at_a_border_whose_last_record_a_blank_covers(
    one_segment: Damageable, restarted: bool, ends: int | None
) -> None:
    fill(one_segment, ends)
    stream = Stream(one_segment.root)
    stream.drain()
    assert stream.at == SEGMENT_BYTES
    written_over_with_a_blank(one_segment)
    if restarted:
        stream.restart()
    with pytest.raises(FailedError, match="the log has been cut before it"):
        stream.poll()


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("ends", [STANDS, None])
def test_an_export_whose_last_record_a_blank_covers(
    one_segment: Damageable, tmp_path: Path, ends: int | None, has_queues: bool
) -> None:
    if ends is not None:
        end_at(one_segment, ends)
    if not has_queues:
        cut_queues(one_segment, 0)
    out = tmp_path / "out"
    export_one(one_segment.root, out)
    assert export_one(one_segment.root, out, incremental=True).rows == 0
    before = table_of(out)
    written_over_with_a_blank(one_segment)
    with pytest.raises(PlanOutOfDateError, match=r"no longer leads to the record at \d+ that was exported last"):
        export_one(one_segment.root, out, incremental=True)
    assert table_of(out).equals(before)


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("ends", [STANDS, None])
def test_an_export_that_is_cut_where_nothing_follows(
    one_segment: Damageable, tmp_path: Path, ends: int | None, has_queues: bool
) -> None:
    """The segment is full, and there is no next one that anything could be taken from."""
    fill(one_segment, ends)
    if not has_queues:
        cut_queues(one_segment, 0)
    out = tmp_path / "out"
    assert export_one(one_segment.root, out).stores[0].next_phy_offset == SEGMENT_BYTES
    assert export_one(one_segment.root, out, incremental=True).rows == 0
    written_over_with_a_blank(one_segment)
    one_segment.segments[1].unlink()
    with pytest.raises(PlanOutOfDateError, match=r"no longer (leads to|has) the record"):
        export_one(one_segment.root, out, incremental=True)


def test_the_way_to_what_was_exported_last_is_walked_by_a_task(
    one_segment: Damageable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the work is planned, which may be far from the disk; and not where nothing is to be taken from behind it."""
    cut_queues(one_segment, 0)
    out, end = tmp_path / "out", at(one_segment, STANDS)
    following = one_segment.read(end, at(one_segment, STANDS + 2) - end)
    end_at(one_segment, STANDS)
    export_one(one_segment.root, out, split_size_bytes=20_000)
    one_segment.write(end, following)
    runner = Recording(monkeypatch)
    report = export_one(one_segment.root, out, runner=runner, incremental=True, split_size_bytes=20_000)
    way = at(one_segment, STANDS - 1)
    assert report.rows == 2
    assert 0 < runner.read_before < 10_000, "the last record, its entry, and the first record"
    assert [task.led for task in runner.tasks] == [Split(0, way, exact=True), *[None] * (len(runner.tasks) - 1)]
    assert report.bytes_read == way + SEGMENT_BYTES - end == sum(task.size_bytes for task in runner.tasks)


def test_a_way_that_cannot_be_read_leads_over_what_it_may(one_segment: Damageable, tmp_path: Path) -> None:
    cut_queues(one_segment, 0)
    end_at(one_segment, STANDS)
    export_one(one_segment.root, tmp_path / "out")
    with failing_disk(one_segment.segments[0], [(8192, 12_288)]):
        assert export_one(one_segment.root, tmp_path / "out", incremental=True).rows == 0


def test_old_records_behind_a_cut_are_none_of_the_log(one_segment: Damageable, tmp_path: Path) -> None:
    """They stand behind what was written anew, and somebody stands among them: nobody is given them as what comes next."""
    end_at(one_segment, STANDS)
    old = one_segment.read(at(one_segment, 280), at(one_segment, STANDS) - at(one_segment, 280))
    one_segment.zero(at(one_segment, 280), len(old))
    out, strict = tmp_path / "out", Stream(one_segment.root)
    export_one(one_segment.root, out)
    strict.drain()
    lenient = Stream(one_segment.root, failOnDataLoss="false")
    lenient.drain()
    one_segment.write(at(one_segment, 280), old)
    one_segment.zero(at(one_segment, CUT), at(one_segment, CUT + 1) - at(one_segment, CUT))
    place = at(one_segment, CUT)
    for row in range(7):
        message = one_segment.message(row)
        one_segment.write(place, record_of(one_segment, row, place))
        entry = (place, message["storeSize"], 0)
        one_segment.set_entry(message["topic"], message["queueId"], message["queueOffset"], entry)
        place += message["storeSize"]
    cut_queues(one_segment, CUT)
    with pytest.raises(PlanOutOfDateError, match="no longer leads to the record"):
        export_one(one_segment.root, out, incremental=True)
    strict.restart()
    with pytest.raises(FailedError, match="the log has been cut before it"):
        strict.poll()
    taken = len(lenient.rows)
    lenient.restart()
    lenient.drain()
    assert lenient.rows[taken:] == []
    assert lenient.at == place, "what is written there next is still to come"


def test_damage_in_front_of_what_was_exported_last_is_no_cut(one_segment: Damageable, tmp_path: Path) -> None:
    """A queue knows what stands behind it."""
    end_at(one_segment, STANDS)
    out, stream = tmp_path / "out", Stream(one_segment.root)
    export_one(one_segment.root, out)
    stream.drain()
    one_segment.zero(at(one_segment, CUT), 100)
    last = one_segment.message(STANDS - 1)
    one_segment.set_entry(last["topic"], last["queueId"], last["queueOffset"])  # so that the chain is asked
    assert export_one(one_segment.root, out, incremental=True).rows == 0
    stream.restart()
    assert not stream.poll()


def test_a_record_that_was_damaged_or_mended_since_is_no_cut(one_segment: Damageable) -> None:
    end_at(one_segment, STANDS)
    stream = Stream(one_segment.root)
    stream.drain()
    one_segment.flip(STANDS - 1, "body", 3)
    assert not stream.poll()
    stream.restart()
    assert not stream.poll()


@pytest.mark.parametrize("has_queues", [True, False])
def test_a_batch_of_nothing_but_a_blank_keeps_the_last_message(one_segment: Damageable, has_queues: bool) -> None:
    if not has_queues:
        cut_queues(one_segment, 0)
    end_at(one_segment, STANDS)
    stream = Stream(one_segment.root)
    stream.drain()
    write_blank(one_segment, at(one_segment, STANDS))
    stream.drain()
    assert stream.at == SEGMENT_BYTES
    written_over_with_a_blank(one_segment)
    stream.restart()
    with pytest.raises(FailedError, match="the log has been cut before it"):
        stream.poll()


def test_a_stream_looks_at_one_queue_only(one_segment: Damageable, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands, and it asks at each trigger."""
    end_at(one_segment, STANDS)
    stream = Stream(one_segment.root)
    stream.drain()
    monkeypatch.setattr(Store, "queues", property(lambda _: pytest.fail("all queues were listed")))
    assert not stream.poll()
    one_segment.write(at(one_segment, STANDS), record_of(one_segment, 0, at(one_segment, STANDS)))
    assert stream.poll()


def test_a_topic_of_which_no_folder_can_be(one_segment: Damageable) -> None:
    """Bytes that are no UTF-8 are three times as long as text."""
    with Store.open(one_segment.root) as opened:
        assert opened.queue("\ufffd" * 127, 0) is None


def test_queues_that_lack_what_is_in_front_of_damage_do_not_tell_of_a_cut(
    one_segment: Damageable, tmp_path: Path
) -> None:
    """They may be about to be built anew."""
    end_at(one_segment, STANDS)
    out, stream = tmp_path / "out", Stream(one_segment.root)
    export_one(one_segment.root, out)
    stream.drain()
    one_segment.zero(at(one_segment, CUT), 100)
    cut_queues(one_segment, 0)
    assert export_one(one_segment.root, out, incremental=True).rows == 0
    stream.restart()
    assert not stream.poll()


def test_a_queue_that_came_late_is_asked_from_then_on(one_segment: Damageable) -> None:
    """A broker writes the entry behind the record; the chain of frames was asked until then."""
    end_at(one_segment, STANDS)
    last = one_segment.message(STANDS - 1)
    key = (last["topic"], last["queueId"], last["queueOffset"])
    one_segment.set_entry(*key)
    stream = Stream(one_segment.root)
    stream.drain()
    assert not stream.poll()
    one_segment.set_entry(*key, (last["phyOffset"], last["storeSize"], 0))
    assert not stream.poll()
    written_over_with_a_blank(one_segment)
    with pytest.raises(FailedError, match=r"has read a up to .*cut"):
        stream.poll()


def test_a_log_that_was_away_once_is_not_another_one_for_ever(one_segment: Damageable, tmp_path: Path) -> None:
    anew = another(one_segment, STANDS - 1)
    end_at(one_segment, STANDS)
    stream = Stream(one_segment.root, failOnDataLoss="false")
    stream.drain()
    taken, log = len(stream.rows), one_segment.root / "commitlog"
    log.rename(tmp_path / "away")
    log.mkdir()
    stream.drain()
    log.rmdir()
    (tmp_path / "away").rename(log)
    stream.drain()
    one_segment.write(at(one_segment, STANDS - 1), anew)
    stream.drain()
    assert len(stream.rows) == taken, "nothing comes twice"
