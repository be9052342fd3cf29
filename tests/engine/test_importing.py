"""Import: what is kept, what is refused, and that each row is there exactly once wherever the process was killed."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from store_core.codec.record import Message
from store_core.engine import importing
from store_core.engine.importing import Imported, import_rows
from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.recovery.apply.apply import apply
from store_core.recovery.recover import recover
from store_core.recovery.truncate import truncate
from store_core.scan.log import scan_log
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.engine.writing import Writable, Written
from tests.recording import Killed, RecordingOps

TOPIC = "Calm_orders"


def line(number: int, **changes: Any) -> bytes:
    row = {"topic": TOPIC, "body": f"row {number}", "queue_id": number % 4, "keys": [f"imp{number}", "all"]} | changes
    return json.dumps(row).encode() + b"\n"


def imported(written: Written, data: bytes, ops: RecordingOps | None = None, **options: Any) -> Imported:
    with written.live(ops=ops) as live:
        return import_rows(live, io.BytesIO(data), **options)


def messages(written: Written, from_phy_offset: int = 0) -> list[Message]:
    found = []
    with written.store() as store:
        for table in scan_log(store, from_phy_offset=from_phy_offset):
            found += [table.message(row) for row in range(len(table)) if not table.kind[row]]
    return found


def test_what_a_row_has_is_kept(writable: Writable) -> None:
    written = writable("load-533")
    rows = line(0, flag=7, tags="T", born_host="10.1.2.3:44", born_timestamp_ms=1234, properties={"own": "größer"})
    rows += line(1, body="/wA=", body_encoding="base64", unique_key="ABC", reconsume_times=3)
    result = imported(written, rows)
    assert (result.rows, result.stored, result.rejected) == (2, 2, 0)
    assert result.first_phy_offset is not None
    first, second = messages(written, result.first_phy_offset)
    assert (first.topic, first.queue_id, first.body, first.flag, first.tags) == (TOPIC, 0, b"row 0", 7, "T")
    assert (first.keys, first.born_host, first.born_timestamp_ms) == (["imp0", "all"], "10.1.2.3:44", 1234)
    assert first.properties["own"] == "größer"
    assert len(first.unique_key or "") == 32
    assert (second.body, second.unique_key, second.reconsume_times) == (b"\xff\x00", "ABC", 3)


BAD = {
    "the row is no JSON": b"{\n",
    "the row is no JSON object": b"[1]\n",
    "topic is no text": b'{"body": "x"}\n',
    "body is no text": b'{"topic": "Calm_orders"}\n',
    "body has half a surrogate pair": b'{"topic": "Calm_orders", "body": "\\ud800"}\n',
    "the body is no base64": line(0, body="*", body_encoding="base64"),
    "body_encoding is neither utf-8 nor base64": line(0, body_encoding="x"),
    "flag is no number of its field": line(0, flag=1 << 31),
    "queue_id is no number of its field": line(0, queue_id=True),
    "born_timestamp_ms is no number of its field": line(0, born_timestamp_ms="now"),
    "properties are no object": line(0, properties=[1]),
    "property 'a' is no text": line(0, properties={"a": 1}),
    "property 'a' cannot be stored": line(0, properties={"a": "b\x02c"}),
    "one half of a transaction is no message of its own": line(0, transaction="prepared"),
    "the row is no message, but damage": b'{"kind": "damage", "phy_offset": 1}\n',
    "'nowhere' is no host and port": line(0, born_host="nowhere"),
    "MESSAGE_ILLEGAL: the topic does not exist": line(0, topic="Nope"),
    "MESSAGE_ILLEGAL: clients may not send to this topic": line(0, topic="SCHEDULE_TOPIC_XXXX"),
    "MESSAGE_ILLEGAL: DELAY is no number": line(0, properties={"DELAY": "x"}),
    "PROPERTIES_SIZE_EXCEEDED: the properties do not fit": line(0, properties={"a": "b" * 33_000}),
    "the row is longer than any message": b'"' + b"x" * (31 << 20) + b'"\n',
    "the row is no JSON ": b"[" * 100_000 + b"\n",
}


def test_rows_that_cannot_be_stored_are_told_with_their_reasons(writable: Writable, tmp_path: Path) -> None:
    written = writable("load-533")
    bad = list(BAD.values())
    data = line(0) + b"\n" + b"".join(bad) + line(1)
    result = imported(written, data, rejects=tmp_path / "rejects")
    assert (result.rows, result.stored, result.rejected) == (len(bad) + 2, 2, len(bad))
    told = [json.loads(text) for text in (tmp_path / "rejects").read_text().splitlines()]
    assert [row["reason"] for row in told] == [reason.strip() for reason in BAD]
    assert [row["row"] for row in told] == [*range(3, len(bad) + 3)]
    assert told[0]["source"] == "{"


def test_delayed_rows_wait_for_the_broker_and_new_topics_are_made(writable: Writable) -> None:
    written = writable("load-533")
    data = line(0, properties={"DELAY": "3"}) + line(1, topic="Calm_fresh") + line(2)
    assert imported(written, data, topic=None, create_topic=True).stored == 3
    found = messages(written)[-3:]
    assert [message.topic for message in found] == ["SCHEDULE_TOPIC_XXXX", "Calm_fresh", TOPIC]


def test_a_queue_that_the_topic_lacks_is_drawn_anew(writable: Writable) -> None:
    written = writable("load-533")
    assert imported(written, line(0, queue_id=77)).stored == 1
    assert messages(written)[-1].queue_id < 4


def test_a_source_is_imported_once_continued_when_it_has_grown_and_again_when_asked(writable: Writable) -> None:
    written = writable("load-533")
    rows = b"".join(map(line, range(5)))
    assert imported(written, rows).stored == 5
    assert imported(written, rows).stored == 0
    grown = imported(written, rows + line(5))
    assert (grown.continued_rows, grown.stored) == (5, 1)
    assert imported(written, rows + line(5), topic="Calm_audit").stored == 6
    assert imported(written, line(9) + rows).stored == 6
    again = imported(written, rows, again=True)
    assert (again.continued_rows, again.stored) == (0, 5)
    keys = Counter(message.keys[0] for message in messages(written) if "all" in message.keys)
    assert keys == {"imp0": 4, "imp1": 4, "imp2": 4, "imp3": 4, "imp4": 4, "imp5": 2, "imp9": 1}
    unique = [message.unique_key for message in messages(written) if "all" in message.keys]
    assert len(set(unique)) == len(unique)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_killed_at_a_primitive_and_run_again_each_row_is_there_once(
    store_copy: StoreCopy, golden: GoldenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int
) -> None:
    monkeypatch.setattr(importing, "BATCH_ROWS", 3)
    data = line(0) + b"bad\n" + b"".join(map(line, range(1, 8)))
    wanted = Counter(f"imp{number}" for number in range(8))
    killed_at, is_whole, continued = 0, False, Counter[bool]()
    while not is_whole:
        written = Written.of("load-533", store_copy("load-533"))
        ops = RecordingOps(written.root.parent, kill_after=killed_at, torn=True)
        try:
            imported(written, data, ops, rejects=tmp_path / f"rejects{killed_at}")
            is_whole = True
        except Killed:
            pass
        finally:
            ops.close()
        if (written.root / "abort").exists():
            with written.store() as store:
                plan = recover(store).plan
            apply(plan, written.root)
        result = imported(written, data, rejects=tmp_path / f"rejects{killed_at}")
        continued[result.continued_rows > 0 or result.found > 0] += 1
        found = Counter(message.keys[0] for message in messages(written) if "all" in message.keys)
        assert found == wanted, killed_at
        assert written.problems() == []
        rejected = (tmp_path / f"rejects{killed_at}").read_text().splitlines()
        assert [json.loads(text)["row"] for text in rejected] == [2], killed_at
        killed_at += step
    assert min(continued.values()) > 1


def test_an_empty_source_is_none(writable: Writable) -> None:
    written = writable("load-533")
    assert imported(written, b"").rows == 0
    assert [imported(written, line(number)).stored for number in range(2)] == [1, 1]


def test_a_source_that_only_begins_as_another_is_refused(writable: Writable) -> None:
    """Sources are recognised by their first bytes; the rows that are passed over must be the same."""
    written = writable("load-533")
    head = b"".join(line(number, body="x" * 1000) for number in range(80))
    assert len(head) > 64 << 10
    assert imported(written, head + line(100) + line(101)).stored == 82
    for other in (head + line(102) + line(103), head):
        with pytest.raises(UsageError, match="goes on otherwise"):
            imported(written, other)
    assert imported(written, head + line(100) + line(101) + line(104)).stored == 1
    assert imported(written, head + line(102), again=True).stored == 81


def test_an_import_does_not_go_on_in_a_log_that_was_cut(writable: Writable) -> None:
    written = writable("load-533")
    end = imported(written, line(0)).first_phy_offset
    assert imported(written, line(0) + line(1)).stored == 1
    assert end is not None
    with written.store() as store:
        planned = truncate(store, end)
    apply(planned.plan, written.root)
    with pytest.raises(UsageError, match="no longer has the place"):
        imported(written, line(0) + line(1) + line(2))


def test_rejects_go_to_a_file_of_their_own(writable: Writable, tmp_path: Path) -> None:
    """A file with something else in it, a folder and a file of the store are refused, and stay as they are."""
    written = writable("load-533")
    other = tmp_path / "notes"
    other.write_text("keep me")
    segment = next((written.root / paths.COMMITLOG).iterdir())
    before = stores.sha256(segment)
    for place in (other, tmp_path, segment, written.root / "rejects"):
        with pytest.raises(UsageError):
            imported(written, b"nonsense\n", rejects=place)
    assert other.read_text() == "keep me"
    assert stores.sha256(segment) == before
    assert not (written.root / "rejects").exists()
    mine = tmp_path / "rejects"
    imported(written, b"nonsense\n", rejects=mine)
    told = mine.read_text()
    imported(written, b"nonsense\n", rejects=mine)  # it goes on, with no row left
    assert mine.read_text() == told
    with pytest.raises(UsageError):  # the rejects of another source
        imported(written, b"other nonsense\n", rejects=mine)


def test_a_full_disk_ends_the_import_and_rejects_no_row(writable: Writable, monkeypatch: pytest.MonkeyPatch) -> None:
    written = writable("load-533")
    with monkeypatch.context() as patch:
        patch.setattr("store_core.storage.syscalls.FileOps.free_bytes", lambda self, path: 100_000)
        with pytest.raises(FailedError, match="disk is full"):
            imported(written, line(0))
    assert imported(written, line(0)).stored == 1
