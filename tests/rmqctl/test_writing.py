"""put and pull --commit as their users call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.read.progress import read_progress
from tests import stores
from tests.conftest import StoreCopy
from tests.rmqctl.calls import Result, call, command, environment

Call = Callable[..., Result]
FIELDS = [
    "status",
    "offset_msg_id",
    "topic",
    "queue_id",
    "queue_offset",
    "phy_offset",
    "size_bytes",
    "store_timestamp_ms",
]


@pytest.fixture
def root(store_copy: StoreCopy) -> Path:
    return store_copy("load-533")


@pytest.fixture
def rmqctl(root: Path, settings_of: Callable[[str], Path]) -> Call:
    config = settings_of("load-533")
    return lambda *args: call(*args, "-s", root, "-c", config)


def test_put_then_get_pull_query_and_check(rmqctl: Call) -> None:
    done = rmqctl(
        "put", "Calm_orders", "hello wörld", "--queue-id", 2, "--keys", "4711 x", "--keys", "y", "--tags", "created",
        "--property", "region=north=east", "--flag", 5, "--born-host", "10.0.0.1:77", "-o", "json",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    answer = done.json
    assert [*answer][:8] == FIELDS
    assert (answer["status"], answer["topic"], answer["queue_id"]) == ("PUT_OK", "Calm_orders", 2)
    got = rmqctl("get", answer["offset_msg_id"], "-o", "json").json
    assert (got["body"], got["keys"], got["tags"], got["flag"]) == ("hello wörld", ["4711", "x", "y"], "created", 5)
    assert (got["properties"]["region"], got["born_host"], got["crc"]) == ("north=east", "10.0.0.1:77", "ok")
    pulled = rmqctl("pull", "Calm_orders", 2, "--offset", answer["queue_offset"], "-o", "json").json
    assert [m["phy_offset"] for m in pulled["messages"]] == [answer["phy_offset"]]
    found = rmqctl("query-key", "Calm_orders", "4711", "--source", "index", "-o", "json").json
    assert [m["phy_offset"] for m in found["messages"]] == [answer["phy_offset"]]
    assert rmqctl("check").code == 0


def test_bodies_from_files_and_standard_input(rmqctl: Call, root: Path, tmp_path: Path) -> None:
    import subprocess

    data = bytes(range(256))
    (tmp_path / "body").write_bytes(data)
    stored = [rmqctl("put", "Calm_audit", "--file", tmp_path / "body", "-o", "json").json]
    for words in (("--file", "-"), ("-",)):
        piped = subprocess.run(
            command("put", "Calm_audit", *words, "-s", root, "-o", "json"),
            input=data, env=environment(), capture_output=True, check=True,
        )  # fmt: skip
        stored.append(json.loads(piped.stdout))
    for answer in stored:
        got = rmqctl("get", answer["phy_offset"], "-o", "json").json
        assert (got["body_size_bytes"], got["body_encoding"]) == (256, "base64")


def test_what_is_not_stored_ends_with_1(rmqctl: Call, root: Path) -> None:
    before = stores.contents(root)
    refused = rmqctl("put", "nobody", "x", "-o", "json")
    assert refused.code == 1
    assert {name: refused.json[name] for name in ("status", "phy_offset")} == {
        "status": "MESSAGE_ILLEGAL",
        "phy_offset": None,
    }
    assert refused.err == "error: not stored: MESSAGE_ILLEGAL (nobody): the topic does not exist\n"
    assert stores.contents(root) == before
    assert rmqctl("put", "nobody", "x", "--create-topic", "-q").code == 0


def test_a_transaction(rmqctl: Call) -> None:
    half = rmqctl("put", "Calm_orders", "x", "--transaction", "half", "-o", "json").json
    assert half["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    at = half["phy_offset"]
    other = rmqctl("put", "Calm_bills", "--transaction", "commit", "--of", at)
    assert (other.code, "Calm_orders" in other.err) == (2, True)
    committed = rmqctl("put", "Calm_orders", "--transaction", "commit", "--of", at, "-o", "json")
    assert (committed.code, committed.json["topic"]) == (0, "Calm_orders")
    assert rmqctl("put", "Calm_orders", "--transaction", "rollback", "--of", at).code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["put", "Calm_orders"],
        ["put", "Calm_orders", "x", "--file", "y"],
        ["put", "Calm_orders", "x", "--property", "novalue"],
        ["put", "Calm_orders", "x", "--property", "a="],
        ["put", "Calm_orders", "x", "--of", "5"],
        ["put", "Calm_orders", "--transaction", "commit"],
        ["put", "Calm_orders", "x", "--transaction", "commit", "--of", "5"],
        ["put", "Calm_orders", "--transaction", "commit", "--of", "5"],
        ["put", "Calm_orders", "x", "--born-host", "nowhere"],
        ["put", "Calm_orders", "x", "--queue-id", "-1"],
        ["put", "Calm_orders", "x", "--flag", "99999999999"],
        ["put", "Calm_orders", "x", "--flush", "never"],
        ["pull", "Calm_orders", "0", "--commit"],
        ["pull", "Calm_orders", "0", "--commit", "--group", "a@b", "-q"],
    ],
)
def test_wrong_usage(rmqctl: Call, root: Path, words: list[str]) -> None:
    before = stores.contents(root)
    done = rmqctl(*words)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert stores.contents(root) == before


def test_words_that_are_not_utf_8(rmqctl: Call) -> None:
    answer = rmqctl("put", "Calm_audit", "\udcff\udcfe", "--keys", "a\udcff", "--tags", "\udcff", "-o", "json").json
    got = rmqctl("get", answer["phy_offset"], "--raw-body", "-o", "json").json
    assert (got["body"], got["keys"], got["tags"]) == ("//4=", ["a�"], "�")


def test_pull_with_commit_goes_on_where_the_last_ended(rmqctl: Call, root: Path) -> None:
    pulls = [
        rmqctl("pull", "Calm_orders", 1, "--group", "walkers", "--commit", "--max", 50, "-o", "json") for _ in range(4)
    ]
    assert [(p.code, p.json["offset"], p.json["next_begin_offset"], p.json["status"]) for p in pulls] == [
        (0, 0, 50, "FOUND"),
        (0, 50, 100, "FOUND"),
        (0, 100, 142, "FOUND"),
        (0, 142, 142, "OFFSET_OVERFLOW_ONE"),
    ]
    assert read_progress(root).offset_of("walkers", "Calm_orders", 1) == 142
    assert rmqctl("check").code == 0


@pytest.mark.parametrize(("release", "following"), [("4.9.3", 0), ("4.9.4", 142)])
def test_progress_behind_the_end_goes_back_with_a_word(rmqctl: Call, release: str, following: int) -> None:
    words = "pull", "Calm_orders", 1, "--group", "walkers", "--commit", "-o", "json", "--broker-version", release
    done = rmqctl(*words, "--offset", 200)
    assert (done.code, done.json["next_begin_offset"]) == (0, following)
    assert f"group 'walkers' goes on at {following}, which is before 200" in done.err


def test_pull_without_commit_stores_nothing(rmqctl: Call, root: Path) -> None:
    before = stores.snapshot(root)
    assert rmqctl("pull", "Calm_orders", 1, "--group", "walkers", "-q").code == 0
    assert stores.snapshot(root) == before


def test_an_unknown_queue_gets_no_progress(rmqctl: Call, root: Path) -> None:
    done = rmqctl("pull", "nobody", 0, "--group", "walkers", "--commit", "-o", "json")
    assert (done.code, done.json["status"]) == (0, "NO_MATCHED_LOGIC_QUEUE")
    assert read_progress(root).offset_of("walkers", "nobody", 0) is None


@pytest.mark.parametrize(
    "words", [["put", "Calm_orders", "x"], ["pull", "Calm_orders", "0", "--commit", "--group", "g"]]
)
def test_a_crashed_store_is_refused(rmqctl: Call, root: Path, words: list[str]) -> None:
    (root / "abort").touch()
    before = stores.snapshot(root)
    done = rmqctl(*words)
    assert (done.code, done.err.count("\n"), "recover" in done.err) == (1, 1, True)
    assert stores.snapshot(root) == before
