"""The reading commands in processes of their own: documents as promised, rows, exit codes, and what they load."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import exit_codes
from store_core.layout import paths
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.refusing import call_without_privileges, forbidden
from tests.rmqctl.calls import ROOT, call, command, environment
from tests.rmqctl.messages import MESSAGE, NAME, body_of, told


def test_pull_is_one_document(golden: GoldenStore) -> None:
    result = call("pull", "Calm_audit", 0, "-s", golden(NAME), "-o", "json", "--max", 5, "--offset", 10)
    assert result.code == exit_codes.OK
    document = result.json
    assert list(document) == [
        "topic",
        "queue_id",
        "offset",
        "status",
        "next_begin_offset",
        "min_offset",
        "max_offset",
        "messages",
    ]
    assert [list(message) for message in document["messages"]] == [MESSAGE] * 5
    assert [m["queue_offset"] for m in document.pop("messages")] == [10, 11, 12, 13, 14]
    assert document == {
        "topic": "Calm_audit",
        "queue_id": 0,
        "offset": 10,
        "status": "FOUND",
        "next_begin_offset": 15,
        "min_offset": 0,
        "max_offset": 517,
    }


def test_pull_by_time_and_group(golden: GoldenStore) -> None:
    store = golden(NAME)
    known = [m for m in told() if (m["topic"], m["queueId"]) == ("Calm_bills", 0)]
    time_ms = known[100]["storeTimestamp"]
    lower = next(m["queueOffset"] for m in known if m["storeTimestamp"] >= time_ms)
    upper = max(m["queueOffset"] for m in known if m["storeTimestamp"] <= time_ms)

    def start(*options: object) -> int:
        document = call("pull", "Calm_bills", 0, "-s", store, "-o", "json", "--max", 1, "--no-body", *options).json
        offset: int = document["offset"]
        return offset

    assert start("--time", time_ms) == lower
    assert start("--time", time_ms, "--boundary", "lower") == lower
    assert start("--time", time_ms, "--boundary", "upper") == upper
    assert start("--group", "Calm_g1") == stores.truth(NAME)["consumerOffsets"]["Calm_bills@Calm_g1"]["0"]
    unknown = call("pull", "Calm_bills", 0, "-s", store, "-o", "json", "--group", "nobody")
    assert (unknown.code, unknown.json["offset"]) == (exit_codes.OK, 0)
    assert "nobody" in unknown.err


def test_pull_without_a_queue_is_an_answer(golden: GoldenStore) -> None:
    result = call("pull", "Nobody", 3, "-s", golden(NAME), "-o", "json")
    assert (result.code, result.json["status"], result.json["messages"]) == (0, "NO_MATCHED_LOGIC_QUEUE", [])
    assert "no queue 3" in result.err


@pytest.mark.parametrize(
    "words",
    [
        ("pull", "Calm_audit", 0, "--offset", 1, "--time", 5),
        ("pull", "Calm_audit", 0, "--boundary", "lower"),
        ("pull", "Calm_audit", 0, "--raw-body", "--no-body"),
        ("pull", "Calm_audit", -1),
        ("dump-cq", "Calm_audit"),
        ("dump-cq",),
        ("dump-cq", "Calm_audit", 0, "--all"),
        ("query-key", "Calm_audit", "k", "--source", "guess"),
        ("log", "--from", "-5"),
    ],
)
def test_wrong_usage(golden: GoldenStore, words: tuple[object, ...]) -> None:
    result = call(*words, "-s", golden(NAME))
    assert result.code == exit_codes.USAGE
    assert "Traceback" not in result.err
    assert result.err.splitlines()[-1].startswith("error: ")


def test_get(golden: GoldenStore) -> None:
    store, message = golden(NAME), told()[77]
    by_offset = call("get", message["phyOffset"], "-s", store, "-o", "json")
    assert by_offset.code == exit_codes.OK
    assert list(by_offset.json) == MESSAGE
    assert by_offset.json["offset_msg_id"] == message["msgId"]
    assert call("get", message["msgId"], "-s", store, "-o", "json").json == by_offset.json
    unique = message["properties"]["UNIQ_KEY"]
    assert call("get", unique, "--topic", message["topic"], "-s", store, "-o", "json").json == by_offset.json
    people = call("get", message["phyOffset"], "-s", store)
    assert message["msgId"] in people.out


@pytest.mark.parametrize("identifier", ["12345", "9" * 19, "9" * 40, "7F0000010000740E" + "F" * 16])
def test_get_of_nothing(golden: GoldenStore, identifier: str) -> None:
    result = call("get", identifier, "-s", golden(NAME), "-o", "json")
    assert (result.code, list(result.json)) == (exit_codes.FAILED, ["error"])
    assert result.err.startswith(f"error: no message {identifier!r}")


def test_get_takes_an_offset_as_a_segment_is_named(golden: GoldenStore) -> None:
    start = next(m["phyOffset"] for m in told() if m["phyOffset"] and m["phyOffset"] % (128 << 10) == 0)
    result = call("get", f"{start:020}", "-s", golden(NAME), "-o", "json")
    assert (result.code, result.json["phy_offset"]) == (exit_codes.OK, start)


def test_bodies(golden: GoldenStore) -> None:
    store = golden("clean-533")
    compressed = next(m for m in told("clean-533") if m["sysFlag"] & 1)
    plain = call("get", compressed["phyOffset"], "-s", store, "-o", "json").json
    raw = call("get", compressed["phyOffset"], "-s", store, "-o", "json", "--raw-body").json
    without = call("get", compressed["phyOffset"], "-s", store, "-o", "json", "--no-body").json
    assert len(body_of(plain)) == compressed["plainLength"]
    assert (len(body_of(raw)), raw["body_encoding"]) == (compressed["bodyLength"], "base64")
    assert list(without) == MESSAGE[:-2]


def test_a_wrong_checksum_is_told(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy(NAME), stores.truth(NAME))
    store.flip(record=5, field="body")
    result = call("get", told()[5]["phyOffset"], "-s", store.root, "-o", "json")
    assert (result.code, result.json["crc"]) == (exit_codes.FINDINGS, "bad")
    assert "L001" in result.err


def test_query_key(golden: GoldenStore) -> None:
    asked = next(q for q in stores.truth(NAME)["keyQueries"] if q["phyOffsets"])
    result = call("query-key", asked["topic"], asked["key"], "-s", golden(NAME), "-o", "json")
    assert list(result.json) == [
        "topic",
        "key",
        "source",
        "index_last_phy_offset",
        "index_last_timestamp_ms",
        "messages",
    ]
    assert [m["phy_offset"] for m in result.json["messages"]] == asked["phyOffsets"]
    last = stores.truth(NAME)["afterLoad"]["indexFiles"][-1]
    assert result.json["index_last_phy_offset"] == last["endPhyOffset"]
    assert result.json["index_last_timestamp_ms"] == last["endTimestamp"]
    scanned = call("query-key", asked["topic"], asked["key"], "-s", golden(NAME), "-o", "json", "--source", "scan")
    assert scanned.json == {**result.json, "source": "scan"}
    nothing = call("query-key", asked["topic"], "no-such-key", "-s", golden(NAME), "-o", "json")
    assert (nothing.code, nothing.json["messages"]) == (exit_codes.OK, [])


@pytest.mark.parametrize("place", ["index", "the first file", "the last file", "a folder that shows only names"])
def test_a_scan_for_a_key_needs_no_index(place: str, store_copy: StoreCopy) -> None:
    root = store_copy(NAME)
    asked = next(q for q in stores.truth(NAME)["keyQueries"] if q["phyOffsets"])
    words = ("query-key", asked["topic"], asked["key"], "-s", root, "-o", "json", "--source")
    files = sorted((root / "index").iterdir())
    refused = {"the first file": files[0], "the last file": files[-1]}.get(place, root / "index")
    with forbidden(refused):
        if place == "a folder that shows only names":
            refused.chmod(0o444)
        scanned = call_without_privileges(*words, "scan")
        by_index = call_without_privileges(*words, "index")
    assert scanned.code == exit_codes.OK
    assert [m["phy_offset"] for m in scanned.json["messages"]] == asked["phyOffsets"]
    assert (scanned.json["index_last_phy_offset"], scanned.json["index_last_timestamp_ms"]) == (None, None)
    assert "I009" in scanned.err
    assert (by_index.code, by_index.json["error"]["code"]) == (exit_codes.FAILED, "failed")


@pytest.mark.parametrize("name", ["clean-497", "cqext-533", "bcq-533"])
def test_dump_cq_of_everything(golden: GoldenStore, name: str) -> None:
    result = call("dump-cq", "--all", "--resolve", "-s", golden(name))
    assert (result.code, result.err) == (exit_codes.OK, "")
    found: dict[tuple[str, int], list[list[int]]] = {}
    for row in result.lines:
        expected = ["topic", "queue_id", "queue_offset", "phy_offset", "size_bytes", "tags_code"]
        expected += ["store_timestamp_ms", "batch_size"] if "batch_size" in row else []
        expected += ["ext"] if "ext" in row else []
        assert list(row) == [*expected, "record"]
        entry = [row["queue_offset"], row["phy_offset"], row["size_bytes"], row["tags_code"]]
        entry += [row["batch_size"]] if "batch_size" in row else []
        if "ext" in row:
            assert list(row["ext"]) == ["tags_code", "store_timestamp_ms", "bitmap"]
            entry = [*entry[:3], row["ext"]["tags_code"], -1, row["ext"]["tags_code"], row["ext"]["store_timestamp_ms"]]
        found.setdefault((row["topic"], row["queue_id"]), []).append(entry)
    queues = stores.truth(name)["afterLoad"]["queues"]
    assert found == {(q["topic"], q["queueId"]): q["entries"] for q in queues if q["entries"]}


def test_dump_cq_resolves_and_compares(damaged: DamagedStore) -> None:
    result = call("dump-cq", "Calm_audit", 0, "--resolve", "-o", "json", "-s", damaged(NAME, "cq-foreign", "clean"))
    assert result.code == exit_codes.FINDINGS
    [wrong] = [row for row in result.json["entries"] if row["record"]["topic"] != "Calm_audit"]
    assert [(f["code"], f["queue_offset"]) for f in result.json["findings"]] == [("Q002", wrong["queue_offset"])]


@pytest.mark.parametrize("name", [NAME, "cqext-533", "bcq-533"])
def test_dump_cq_takes_what_has_expired_for_no_fault(damageable: Callable[[str], Damageable], name: str) -> None:
    store = damageable(name)
    store.segments[0].unlink()
    start = int(store.segments[0].name)
    result = call("dump-cq", "--all", "--resolve", "-s", store.root, "-o", "json")
    assert (result.code, result.json["findings"]) == (exit_codes.OK, [])
    rows = result.json["entries"]
    assert any(row["phy_offset"] < start for row in rows)
    assert [row["record"] is None for row in rows] == [row["phy_offset"] < start for row in rows]
    query = "select phy_offset from queues where state = 'expired'"
    expired = [row["phy_offset"] for row in call("sql", query, "-s", store.root, "-o", "json").json["rows"]]
    assert sorted(row["phy_offset"] for row in rows if row["record"] is None) == sorted(expired)


def test_dump_cq_part_and_missing_queue(golden: GoldenStore) -> None:
    part = call("dump-cq", "Calm_audit", 0, "--from", 198, "--to", 203, "-s", golden(NAME))
    assert [row["queue_offset"] for row in part.lines] == [198, 199, 200, 201, 202]
    missing = call("dump-cq", "Nobody", 0, "-s", golden(NAME))
    assert missing.code == exit_codes.FAILED
    assert missing.err.startswith("error: no queue 0 of topic 'Nobody'")


def test_dump_index(golden: GoldenStore) -> None:
    rows = call("dump-index", "-s", golden(NAME)).lines
    headers = stores.truth(NAME)["afterLoad"]["indexFiles"]
    assert list(rows[0]) == ["file", "slot", "entry", "key_hash", "phy_offset", "store_timestamp_ms", "previous"]
    for header in headers:
        own = [row for row in rows if row["file"] == header["file"]]
        assert [row["entry"] for row in own] == list(range(1, header["indexCount"]))
        assert own[-1]["phy_offset"] == header["endPhyOffset"]
        assert {row["slot"] == row["key_hash"] % 500 for row in own} == {True}
    slot = rows[-1]["slot"]
    chain = call("dump-index", "-s", golden(NAME), "--file", headers[-1]["file"], "--slot", slot).lines
    assert chain == [row for row in reversed(rows) if (row["file"], row["slot"]) == (headers[-1]["file"], slot)]
    assert call("dump-index", "-s", golden(NAME), "--file", "1").code == exit_codes.FAILED


def test_dump_index_tells_of_files_that_it_cannot_show(store_copy: StoreCopy) -> None:
    root = store_copy(NAME)
    short, other = sorted(path.name for path in (root / "index").iterdir())[:2]
    os.truncate(root / "index" / short, 1000)
    (root / "index/notes").write_text("of ours")
    result = call("dump-index", "-s", root, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    found = [(each["code"], each["file"]) for each in result.json["findings"]]
    assert ("I005", f"index/{short}") in found
    assert ("I006", "index/notes") in found
    alone = call("dump-index", "-s", root, "--file", other, "-o", "json")
    assert not {"I005", "I006"} & {each["code"] for each in alone.json["findings"]}


def test_dump_cq_tells_of_entries_behind_the_queues_end(damageable: Callable[[str], Damageable]) -> None:
    store = damageable(NAME)
    store.set_entry("Calm_audit", 0, 500)
    result = call("dump-cq", "Calm_audit", 0, "--from", 490, "-s", store.root, "-o", "json")
    assert (result.code, len(result.json["entries"])) == (exit_codes.FINDINGS, 10)
    [told] = result.json["findings"]
    assert (told["code"], told["queue_offset"]) == ("Q008", 500)
    assert told["message"].startswith("16 entries ")
    assert call("dump-cq", "Calm_audit", 0, "--to", 500, "-s", store.root).code == exit_codes.OK


def test_lag(golden: GoldenStore) -> None:
    result = call("lag", "-s", golden(NAME), "-o", "json")
    assert list(result.json) == ["groups"]
    ends = {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in stores.truth(NAME)["afterLoad"]["queues"]}
    expected = [
        {
            "group": group,
            "topic": topic,
            "queue_id": int(queue_id),
            "offset": offset,
            "min_offset": ends[topic, int(queue_id)][0],
            "max_offset": ends[topic, int(queue_id)][1],
            "lag": ends[topic, int(queue_id)][1] - offset,
        }
        for name, offsets in stores.truth(NAME)["consumerOffsets"].items()
        for topic, group in [name.split("@")]
        for queue_id, offset in offsets.items()
    ]
    assert result.json["groups"] == sorted(expected, key=lambda r: (r["group"], r["topic"], r["queue_id"]))
    table = list(csv.reader(io.StringIO(call("lag", "-s", golden(NAME), "-o", "csv", "--group", "Calm_g2").out)))
    assert table[0] == ["group", "topic", "queue_id", "offset", "min_offset", "max_offset", "lag"]
    assert {row[0] for row in table[1:]} == {"Calm_g2"}


def test_info_of_several_stores(golden: GoldenStore) -> None:
    result = call("info", "-s", golden(NAME), "-s", f"dead={golden('crash-497')}", "-o", "json")
    assert list(result.json) == ["stores"]
    clean, dead = result.json["stores"]
    contract = ["store", "path", "last_exit", "broker_version", "commitlog", "queues", "index", "groups", "checkpoint"]
    assert [key for key in clean if key in contract] == contract
    assert list(clean["broker_version"]) == ["assumed", "possible", "evidence"]
    assert (clean["store"], clean["last_exit"], clean["would_start"]["starts"]) == (NAME, "clean", True)
    assert (dead["store"], dead["last_exit"]) == ("dead", "crash")
    assert dead["broker_version"]["assumed"].startswith("4.")
    assert [found["code"] for found in dead["findings"]] == ["S001"]
    assert result.code == exit_codes.OK


def test_info_says_why_a_broker_would_not_start(damaged: DamagedStore) -> None:
    result = call("info", "-s", damaged(NAME, "log-mid-short", "clean"), "-o", "json")
    [document] = result.json["stores"]
    assert document["would_start"]["starts"] is False
    assert "bytes long instead of" in document["would_start"]["reason"]
    assert "L009" in [found["code"] for found in document["findings"]]
    assert result.code == exit_codes.FINDINGS


def test_info_says_unknown_of_what_is_in_rocksdb(golden: GoldenStore) -> None:
    [document] = call("info", "-s", golden("rocks-533"), "-o", "json").json["stores"]
    assert document["would_start"] == {"starts": None, "reason": None}
    assert (document["queues"], document["groups"]) == (None, None)
    assert [note.split(" not known")[0] for note in document["notes"]] == [
        "queues are",
        "groups are",
        "whether a broker would start is",
    ]
    shown = call("info", "-s", golden("rocks-533"), "-o", "plain").out
    assert re.search(r"^would_start +unknown$", shown, re.MULTILINE)
    assert "Queues\nunknown\n" in shown
    assert "Groups\nunknown\n" in shown
    assert "no queues" not in shown


def test_info_says_unknown_of_progress_in_rocksdb_beside_queue_files(
    golden: GoldenStore, store_copy: StoreCopy
) -> None:
    """The newer layout keeps all configuration in one database."""
    root = store_copy(NAME)
    (root / paths.CONSUMER_OFFSET_JSON).unlink()
    shutil.copytree(golden("rocks-533") / "config/consumerOffsets", root / "config/rdb")
    [document] = call("info", "-s", root, "-o", "json").json["stores"]
    assert document["would_start"]["starts"] is None
    assert document["queues"]
    assert document["groups"] is None
    assert len(document["notes"]) == 2


def test_tail(golden: GoldenStore) -> None:
    rows = call("tail", "-n", 3, "-s", golden(NAME), "--no-body").lines
    assert [row["phy_offset"] for row in rows] == [m["phyOffset"] for m in told()[-3:]]
    rows = call("tail", "-n", 2, "-s", golden(NAME), "--topic", "Calm_bills").lines
    assert [row["phy_offset"] for row in rows] == [m["phyOffset"] for m in told() if m["topic"] == "Calm_bills"][-2:]
    rows = call("tail", "-n", 10**30, "-s", golden(NAME), "--no-body", "-o", "ndjson").lines
    assert [row["phy_offset"] for row in rows] == [m["phyOffset"] for m in told()]


def test_tail_follows_until_interrupted(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy(NAME), stores.truth(NAME))
    last = store.message(-1)
    data = store.read(last["phyOffset"], last["storeSize"])
    store.zero(last["phyOffset"], last["storeSize"])
    process = subprocess.Popen(
        command("tail", "-n", 1, "--follow", "-s", store.root), cwd=ROOT, env=environment(), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["phy_offset"] == store.message(-2)["phyOffset"]
        store.write(last["phyOffset"], data)
        assert json.loads(process.stdout.readline())["phy_offset"] == last["phyOffset"]
    finally:
        process.send_signal(2)
        assert process.wait(30) == exit_codes.INTERRUPTED


@pytest.mark.parametrize("words", [("pull", "Rocks_orders", 0), ("dump-cq", "--all"), ("lag",)])
def test_queues_in_rocksdb_are_one_clear_error(golden: GoldenStore, words: tuple[object, ...]) -> None:
    result = call(*words, "-s", golden("rocks-533"))
    assert result.code == exit_codes.FAILED
    [line] = result.err.splitlines()
    assert line.startswith("error: queues are kept in RocksDB")


READS = (
    ("info",),
    ("log", "--max", 20),
    ("dump-cq", "--all"),
    ("dump-index",),
    ("lag",),
    ("pull", "Calm_audit", 0),
    ("get", 0),
    ("query-key", "Calm_audit", "shared9"),
    ("tail",),
)


@pytest.mark.parametrize("words", READS)
def test_nothing_is_changed_on_a_read_only_tree(
    store_copy: StoreCopy, read_only: Callable[[Path], Path], words: tuple[object, ...]
) -> None:
    root = store_copy(NAME)
    for folder, _, files in os.walk(root):
        for name in files:
            os.chmod(Path(folder, name), stat.S_IRUSR)
        os.chmod(folder, stat.S_IRUSR | stat.S_IXUSR)
    read_only(root)
    try:
        result = call(*words, "-s", root, "-o", "json")
        assert (result.code, result.err) == (exit_codes.OK, "")
        assert result.json
    finally:
        for folder, _, _ in os.walk(root):
            os.chmod(folder, stat.S_IRWXU)


@pytest.mark.product(15)
@pytest.mark.parametrize("missing", ["config", "index", "checkpoint", "consumequeue", "commitlog"])
@pytest.mark.parametrize("words", READS)
def test_parts_may_be_missing(store_copy: StoreCopy, missing: str, words: tuple[object, ...]) -> None:
    import shutil

    root = store_copy(NAME)
    path = root / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = call(*words, "-s", root, "-o", "json")
    assert result.code in (exit_codes.OK, exit_codes.FINDINGS, exit_codes.FAILED)
    assert "Traceback" not in result.err
    document = result.json
    if result.code == exit_codes.FAILED:
        assert words[0] == "get"
        assert missing == "commitlog"
        assert list(document) == ["error"]


@pytest.mark.parametrize(
    "words", [("get", 0), ("pull", "Calm_audit", 0), ("query-key", "Calm_audit", "shared9"), ("lag",)]
)
def test_point_reads_load_nothing_heavy(golden: GoldenStore, words: tuple[object, ...]) -> None:
    code = (
        "import sys; from rmqctl.app import main; code = main(sys.argv[1:]);"
        "print({'numpy', 'pyarrow', 'rich', 'pyspark', 'duckdb'} & set(sys.modules), code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words), "-s", golden(NAME), "-o", "json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "set() 0"


def test_several_log_folders(store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy(NAME)
    other = tmp_path / "second"
    other.mkdir()
    for path in sorted((root / "commitlog").iterdir())[1::2]:
        path.rename(other / path.name)
    config = tmp_path / "broker.conf"
    config.write_text(f"storePathRootDir={root}\nstorePathCommitLog={root}/commitlog,{other}\n")
    result = call("log", "-c", config, "--no-body", "-o", "ndjson")
    assert [row["phy_offset"] for row in result.lines] == [m["phyOffset"] for m in told()]
    assert call("pull", "Calm_audit", 0, "-c", config, "-o", "json", "--max", 517).json["status"] == "FOUND"


def test_topics_that_are_no_utf8(store_copy: StoreCopy) -> None:
    """No broker reads such a folder."""
    root = store_copy(NAME)
    os.rename(root / "consumequeue/Calm_audit", os.fsencode(root / "consumequeue") + b"/Calm_\xff")
    document = call("dump-cq", "--all", "-s", root, "-o", "json").json
    assert {row["topic"] for row in document["entries"]}.isdisjoint({"Calm_\ufffd", "Calm_audit"})
    assert [(f["code"], f["file"]) for f in document["findings"]] == [("Q019", "consumequeue/Calm_\ufffd")]
    for topic in ("Calm_\ufffd", os.fsdecode(b"Calm_\xff")):
        assert call("pull", topic, 0, "-s", root, "-o", "json").json["status"] == "NO_MATCHED_LOGIC_QUEUE"
