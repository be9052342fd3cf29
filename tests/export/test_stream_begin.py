"""Which stores a stream follows, where each begins, and how they share a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.errors import FailedError, UsageError
from store_core.export.source.offsets import end_of
from store_core.export.source.options import parse_options
from store_core.export.source.planning import followers, next_offsets, refuse_copies, refuse_renamed
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.export.streams import Stream, ends_of, told
from tests.export.test_copies import lag
from tests.export.test_splits import SEGMENT_BYTES


def test_a_stream_begins_where_it_is_told(golden: GoldenStore) -> None:
    offsets = [offset for offset, _ in told("load-533")]
    stream = Stream(golden("load-533"), startingOffset=offsets[40] + 1)
    stream.drain()
    assert [row[0] for row in stream.rows] == offsets[41:]
    latest = Stream(golden("load-533"), startingOffset="latest")
    assert [latest.poll(), latest.poll(), latest.rows] == [True, False, []], "a first batch of nothing keeps the begin"
    with pytest.raises(UsageError, match="startingOffset"):
        Stream(golden("load-533"), fromOffset=5)


def test_each_store_begins_where_it_is_told(golden: GoldenStore) -> None:
    at = told("load-533")[40][0]
    paths = ",".join(
        f"{name}={golden(store)}" for name, store in (("a", "load-533"), ("b", "ipv6-533"), ("c", "clean-533"))
    )
    stream = Stream(golden("load-533"), path=paths, startingOffset=f'{{"a": {at}, "b": "latest"}}')
    alone = Stream(golden("ipv6-533"), startingOffset="latest")
    assert ends_of(stream.offsets) == {"a": at, "b": alone.at, "c": 0}
    assert alone.at > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 0, "elsewhere": 1}', r"names 'elsewhere'.*: the stores are a"),
        ('{"a": 0', "is no JSON"),
        ('{"a": 0, "a": 1000}', "names 'a' twice"),
        ('{"a": true}', "is no number: 'True'"),
        ('{"a": -1}', "is no number: '-1'"),
        ("soon", "is no number: 'soon'.*earliest, latest or digits"),
    ],
)
def test_a_begin_that_makes_no_sense_is_told(golden: GoldenStore, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Stream(golden("load-533"), startingOffset=text)


def test_a_begin_that_has_expired_is_an_error_or_passed(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    store.segments[0].unlink()
    left = [offset for offset, _ in told("load-533") if offset >= SEGMENT_BYTES]
    assert len(left) < len(told("load-533"))
    with pytest.raises(
        FailedError, match=rf"is to start at 0, and the log of a begins at {SEGMENT_BYTES} .*: give option"
    ):
        Stream(store.root, startingOffset=0)
    with pytest.raises(UsageError, match=r"is to start at 99999999, and the log of a ends at \d+"):
        Stream(store.root, startingOffset=99999999)
    for options in ({"startingOffset": 0, "failOnDataLoss": "false"}, {"startingOffset": SEGMENT_BYTES}, {}):
        stream = Stream(store.root, **options)
        stream.drain()
        assert [row[0] for row in stream.rows] == left


@pytest.mark.parametrize("behind", [1, 5000])
def test_a_begin_behind_the_newest_record_is_an_error_though_the_file_goes_on(
    damageable: Callable[..., Damageable], behind: int
) -> None:
    """The broker goes on in the rest of the file: a stream that began behind it would never see that."""
    store = damageable("load-533")
    last = store.segments[-1]
    end = next(offset for offset, _ in told("load-533") if offset > int(last.name) + 20_000)
    store.zero(end, int(last.name) + last.stat().st_size - end)
    for offset in (end + behind, int(last.name) + last.stat().st_size):
        with pytest.raises(UsageError, match=rf"is to start at {offset}, and the log of a ends at \d+"):
            Stream(store.root, startingOffset=offset)
    assert Stream(store.root, startingOffset=end).at == end


def test_a_limit_is_shared_among_stores(golden: GoldenStore, tmp_path: Path) -> None:
    options = parse_options({"path": f"a={golden('load-533')},b={golden('ipv6-533')}", "quietMs": "0"})
    found = followers(options)
    begin = {"a": 0, "b": 0}
    end = next_offsets(found, begin, 100_000)
    assert 0 < end_of(end["a"]) <= 60_000
    assert 0 < end_of(end["b"]) <= 60_000
    assert ends_of(next_offsets(found, begin, None, {"a": 5000, "b": 0})) == {"a": 5000, "b": 0}


def test_a_stream_takes_no_copies(golden: GoldenStore, damageable: Callable[..., Damageable]) -> None:
    slave = lag(damageable("load-533"), 1500).root
    paths = {"path": f"{golden('load-533')},{slave},{golden('crash-533')}"}
    with pytest.raises(UsageError, match=r"are copies of one log.*2 times: name one of them in option\(\"path\"\)"):
        refuse_copies(parse_options(paths))
    refuse_copies(parse_options(paths | {"keepCopies": "true"}))
    refuse_copies(parse_options({"path": f"{golden('load-533')},{golden('crash-533')}"}))


@pytest.mark.parametrize(
    ("known", "now", "is_refused"),
    [("a", "a", False), ("ab", "a", False), ("a", "ab", False), ("a", "b", True), ("ab", "bc", True), ("", "a", False)],
)
def test_a_store_of_another_name_is_not_read_once_more(known: str, now: str, is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(UsageError, match="stands in its place: name the stores as before"):
            refuse_renamed(known, now)
    else:
        refuse_renamed(known, now)
