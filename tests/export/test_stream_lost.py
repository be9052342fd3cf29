"""What a stream does where what it stands on is gone: segments that expired, logs that were cut, and written on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store_core.errors import FailedError
from store_core.export.source.planning import stream_readings
from store_core.export.source.reading import read_messages
from tests import stores
from tests.damage import Damageable
from tests.export.streams import Stream, told
from tests.export.test_splits import SEGMENT_BYTES, record_of


def test_expired_segments_are_an_error_or_passed(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    strict = Stream(store.root, maxBytesPerTrigger=5000)
    lenient = Stream(store.root, maxBytesPerTrigger=5000, failOnDataLoss="false")
    for stream in (strict, lenient):
        stream.poll()
    begin = dict(strict.offsets)
    taken = len(lenient.rows)
    for segment in store.segments[:2]:
        segment.unlink()
    with pytest.raises(FailedError, match=f"has read a up to {strict.at}, and the log begins at {2 * SEGMENT_BYTES}"):
        strict.poll()
    with pytest.raises(FailedError, match="failOnDataLoss"):
        stream_readings(strict.options, begin, {"a": 3 * SEGMENT_BYTES})
    lenient.drain()
    assert [row[0] for row in lenient.rows[taken:]] == [
        offset for offset, _ in told("load-533") if offset >= 2 * SEGMENT_BYTES
    ]


def test_a_stream_stays_where_all_that_it_has_read_expires(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    last = store.segments[-1]
    store.zero(int(last.name), last.stat().st_size)
    store.write(int(last.name) - 16, b"old " * 4)  # a blank's end is what was there
    stream = Stream(store.root)
    stream.drain()
    assert stream.at == int(last.name)
    for segment in store.segments[:-1]:
        segment.unlink()
    assert not stream.poll()


def test_a_segment_that_goes_between_planning_and_reading(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    lost = store.segments[1]
    for fails in ("true", "false"):
        stream = Stream(store.root, failOnDataLoss=fails)
        readings = stream_readings(stream.options, {"a": 0}, {"a": 3 * SEGMENT_BYTES})
        kept = lost.read_bytes()
        lost.unlink()
        if fails == "true":
            with pytest.raises(FailedError, match="a segment went away before it was read"):
                [batch for reading in readings for batch in read_messages(reading)]
        else:
            rows = sum(len(batch) for reading in readings for batch in read_messages(reading))
            gone = range(SEGMENT_BYTES, 2 * SEGMENT_BYTES)
            assert rows == sum(offset < 3 * SEGMENT_BYTES and offset not in gone for offset, _ in told("load-533"))
        lost.write_bytes(kept)


def test_a_log_that_was_cut_is_an_error(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    stream = Stream(store.root)
    stream.drain()
    for segment in store.segments[2:]:
        segment.unlink()
    stream.restart()
    with pytest.raises(FailedError, match="the log ends before it"):
        stream.poll()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("written_on", [False, True])
def test_a_log_that_was_cut_inside_its_segment_is_an_error(
    one_segment: Damageable, restarted: bool, written_on: bool
) -> None:
    """Zeros are left, or other records, over the place where the stream stands."""
    stands, cut = (one_segment.message(record)["phyOffset"] for record in (300, 250))
    behind = one_segment.segment_size_bytes - stands
    one_segment.zero(stands, behind)
    stream = Stream(one_segment.root)
    stream.drain()
    assert stream.at == stands
    one_segment.zero(cut, stands - cut)
    if written_on:
        size = one_segment.message(0)["storeSize"]
        for at in range(cut, stands + size, size):
            one_segment.write(at, record_of(one_segment, 0, at))
    if restarted:
        stream.restart()
    with pytest.raises(
        FailedError, match=r"the stream has read a up to \d+, and .*cut.*: start the query with another checkpoint"
    ):
        stream.poll()
    stream.restart(failOnDataLoss="false")
    taken = len(stream.rows)
    stream.poll()
    if written_on:
        assert stream.at > stands
        return
    assert stream.at == cut, "what is written from there on is still to come"
    size = one_segment.message(0)["storeSize"]
    written = range(cut, stands + size, size)
    for at in written:
        one_segment.write(at, record_of(one_segment, 0, at))
    stream.restart()
    stream.drain()
    assert [row[0] for row in stream.rows[taken:]] == [*written]


def test_a_log_that_was_written_anew_is_an_error(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    first = store.message(0)
    stream = Stream(store.root, startingOffset=store.message(5)["phyOffset"])
    raw = store.read(0, first["storeSize"])
    # One record where there were several, all of it right.
    size = store.message(6)["phyOffset"]
    store.set_field(0, "size_bytes", size)
    store.set_field(0, "body_length", first["bodyLength"] + size - first["storeSize"])
    tail = raw[store.field_at(0, "body") + first["bodyLength"] :]
    store.write(size - len(tail), tail)
    stream.restart()
    with pytest.raises(FailedError, match="no record starts there any more"):
        stream.poll()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cut_in_front_of_a_segments_start_is_an_error(
    damageable: Callable[..., Damageable], *, restarts: bool
) -> None:
    """Where the stream stands at the begin of a segment, what is in front of it is a blank, mostly of zeros."""
    store = damageable("load-533")
    others = store.segments[1:]
    for segment in others:
        segment.unlink()
    others[0].write_bytes(bytes(SEGMENT_BYTES))
    stream = Stream(store.root)
    stream.drain()
    assert stream.at == SEGMENT_BYTES
    stream.drain()
    if restarts:
        stream.restart()
    records = [message for message in stores.truth("load-533")["messages"] if message["phyOffset"] < SEGMENT_BYTES]
    cut = records[-5]["phyOffset"]
    store.zero(cut, SEGMENT_BYTES - cut)
    with pytest.raises(FailedError, match=r"the log (has been cut|ends) before it"):
        stream.drain()


def test_a_stream_at_a_segments_start_goes_on_after_a_restart(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    second = store.segments[1]
    kept = second.read_bytes()
    for segment in store.segments[1:]:
        segment.unlink()
    stream = Stream(store.root)
    for made_ahead in (False, True):
        if made_ahead:
            second.write_bytes(bytes(SEGMENT_BYTES))
        stream.restart()
        stream.drain()
        assert stream.at == SEGMENT_BYTES
    second.write_bytes(kept)
    stream.restart()
    stream.drain()
    assert [row[0] for row in stream.rows] == [at for at, _ in told("load-533") if at < 2 * SEGMENT_BYTES]


def test_a_running_stream_goes_on_at_a_record_behind_a_cut_if_it_may(one_segment: Damageable) -> None:
    """Where it stood is in the middle of a record that was written since: nothing begins there."""
    stands, cut = (one_segment.message(record)["phyOffset"] for record in (300, 250))
    one_segment.zero(stands, one_segment.segment_size_bytes - stands)
    stream = Stream(one_segment.root, failOnDataLoss="false")
    stream.drain()
    assert stream.at == stands
    one_segment.zero(cut, stands - cut)
    size = one_segment.message(0)["storeSize"]
    written = range(cut, stands + 5 * size, size)
    assert stands not in written
    for at in written:
        one_segment.write(at, record_of(one_segment, 0, at))
    taken = len(stream.rows)
    stream.drain()
    assert [row[0] for row in stream.rows[taken:]] == [at for at in written if at >= stands]
