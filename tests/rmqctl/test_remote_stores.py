"""Commands over a store in an object store: what they say is what they say of the same store on a disk."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.faulty_proxy import Fault, Faulty, in_front_of
from tests.object_stores import KINDS, Kind, ObjectStore
from tests.rmqctl.calls import ROOT, call, command, environment

DamageableStore = Callable[..., Damageable]
READING = {
    "verify-crc": ("verify-crc",),
    "verify-crc, a window at a time": ("verify-crc", "--jobs", "1", "--from", "100000"),
    "info": ("info",),
    "log": ("log", "--all", "--from", "100000"),
    "dump-cq": ("dump-cq", "--all"),
    "dump-index": ("dump-index",),
    "checkpoint": ("checkpoint",),
    "check": ("check",),
    "lag": ("lag",),
    "tail": ("tail", "-n", "3"),
    "get": ("get", "0"),
    "pull": ("pull", "LoadTopicA", "0"),
    "query-key": ("query-key", "LoadTopicA", "k1", "--source", "scan"),
    "query-key, index": ("query-key", "LoadTopicA", "k1", "--source", "index"),
    "sql": ("sql", "select topic, count(*), sum(size_bytes), max(store_time) from messages group by 1 order by 1"),
    "sql, some of the log": ("sql", "select * from messages where phy_offset between 50000 and 99999 order by 2"),
    "sql, queues": (
        "sql",
        "select q.topic, q.queue_id, state, count(*), count(m.phy_offset) from queues q left join messages m"
        " using (phy_offset) group by all order by all",
    ),
    "sql, index": ("sql", 'select file, count(*), min(store_time), sum(key_hash) from "index" group by 1 order by 1'),
    "sql, offsets": ("sql", "select * from offsets order by all"),
    "sql, findings": ("sql", "select * from findings order by all"),
}


@pytest.fixture(scope="session")
def wounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One damaged store for all commands: a bad body, a lost segment, a torn tail, a short queue file, ``abort``."""
    root = stores.copy_store(
        stores.unpack("load-533", tmp_path_factory.mktemp("golden") / "a"), tmp_path_factory.mktemp("b") / "s"
    )
    store = Damageable(root, stores.truth("load-533"))
    store.flip(record=100, field="body")
    store.lose(segment=3)
    store.tear(tail=13)
    (root / "abort").touch()
    return root


@pytest.mark.product(7)
@pytest.mark.parametrize("name", READING)
def test_the_answer_is_the_same(name: str, wounded: Path, object_store: ObjectStore) -> None:
    address = object_store.put(wounded)
    here = call(*READING[name], "-s", wounded, "-o", "json")
    there = call(*READING[name], "-s", address, "-o", "json")
    assert (there.code, there.err) == (here.code, here.err.replace(str(wounded), address))
    assert _timeless(there.json) == _timeless(_moved(here.json, str(wounded), address))


def _timeless(document: Any) -> Any:
    """Without how long it took, and when files were changed: objects are as old as their copy."""
    if isinstance(document, dict):
        return {
            key: _timeless(value)
            for key, value in document.items()
            if key not in ("seconds", "bytes_per_second", "modified_timestamp_ms")
        }
    return [_timeless(value) for value in document] if isinstance(document, list) else document


def _moved(document: Any, here: str, there: str) -> Any:
    if isinstance(document, dict):
        return {key: _moved(value, here, there) for key, value in document.items()}
    if isinstance(document, list):
        return [_moved(value, here, there) for value in document]
    return document.replace(here, there) if isinstance(document, str) else document


@pytest.mark.parametrize(
    "words",
    [
        ("recover",),
        ("recover", "--predict"),
        ("recover", "--apply", "--yes"),
        ("truncate", "1000"),
        ("rebuild", "all"),
        ("checkpoint", "--rebuild"),
        ("undo",),
        ("undo", "--list"),
        ("put", "LoadTopicA", "body"),
        ("pull", "LoadTopicA", "0", "--group", "g", "--commit"),
        ("tail", "--follow"),
    ],
    ids=" ".join,
)
def test_nothing_is_changed_there(words: tuple[str, ...], object_store: ObjectStore, wounded: Path) -> None:
    address = object_store.put(wounded)
    refused = call(*words, "-s", address)
    assert refused.code == 2
    assert refused.err == (
        f"error: this cannot be done with a store in an object store ({address}): copy it to a disk, and name the copy\n"
    )


def test_a_copy_there_gives_what_is_damaged_here(
    object_store: ObjectStore, wounded: Path, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    root = stores.copy_store(wounded, tmp_path / "store")
    address = object_store.put(golden("load-533"))
    document = call("recover", "--sibling", address, "--apply", "-s", root, "-o", "json").json
    assert (document["applied"], document["lost"]) == (True, [])
    (taken,) = document["siblings"]
    assert (taken["sibling"], len(taken["ranges"]), taken["earlier"]) == (address, 3, None)
    assert [f for f in document["findings"] if f["severity"] != "info"] == []


def test_no_store_there(object_store: ObjectStore) -> None:
    refused = call("verify-crc", "-s", "s3://stores/nothing")
    assert (refused.code, refused.out) == (10, "")
    assert refused.err.startswith("error: no such bucket, or nothing in that folder (s3://stores/nothing): name the ")


def test_nobody_answers() -> None:
    refused = call(
        "info",
        *("-s", "s3://stores/any"),
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="a",
        AWS_SECRET_ACCESS_KEY="b",
        AWS_REGION="us-east-1",
    )
    assert refused.code == 1
    assert refused.err.startswith("error: the object store does not answer (")
    assert "s3://stores/any" in refused.err


def test_a_wrong_address_is_a_wrong_word() -> None:
    refused = call("info", "-s", "a=ftp://host/store")
    assert refused.code == 2
    assert refused.err.startswith(
        "error: unknown kind of address ftp:// (ftp://host/store): name a local path, or one of"
    )


def test_one_here_and_one_there(object_store: ObjectStore, wounded: Path) -> None:
    address = object_store.put(wounded)
    both = call("verify-crc", "-s", f"here={wounded}", "-s", f"there={address}", "-o", "json").json["stores"]
    assert [store["store"] for store in both] == ["here", "there"]
    assert both[0] | {"store": ""} == both[1] | {"store": ""}


@pytest.mark.parametrize("name", ["sql", "verify-crc"])
def test_threads_that_read_are_not_waited_for(name: str, object_store: ObjectStore, golden: GoldenStore) -> None:
    """The server falls silent when they ask for the log; their clients have patience for twenty seconds."""
    faulty = Faulty(lambda method, path: Fault.SILENT if method == "GET" and "/commitlog/0" in path else None)
    address = object_store.put(golden("load-533"))
    with in_front_of(object_store, faulty) as behind:
        process = subprocess.Popen(
            command(*READING[name], "-s", address), cwd=ROOT, env=environment(**behind.environment),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            while not faulty.met:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=8)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, err) == (130, "error: interrupted\n")


@pytest.mark.product(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("is_export", [False, True])
def test_who_is_asked_to_end_waits_for_no_server(
    kind: Kind, number: signal.Signals, code: int, word: str, is_export: bool, golden: GoldenStore
) -> None:
    """It takes connections and never answers; the clients wait for nine seconds at least, and for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = ObjectStore(kind, server.getsockname()[1])
        address = silent.address("place")
        words = ("export", address, "-q", "-s", str(golden("load-533"))) if is_export else ("info", "-s", address)
        process = subprocess.Popen(
            command(*words), cwd=ROOT, env=environment(**silent.environment),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            server.settimeout(60)
            with server.accept()[0] as connection:
                assert connection.recv(1), "nothing is asked"
                process.send_signal(number)
                out, err = process.communicate(timeout=8)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, out, err) == (code, "", f"error: {word}\n")
