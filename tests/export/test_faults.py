"""Exports through a network and an object store that fail: every row once in the end, and no damage that is none."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from store_core.errors import FailedError
from store_core.export.dest.address import Format, destination_of
from store_core.export.dest.missing_library import told
from store_core.storage.objects import objects_at
from store_core.storage.publish import ResultFolder
from store_core.storage.remote_path import path_of
from store_core.storage.syscalls import FileOps
from tests import stores
from tests.conftest import GoldenStore
from tests.export.exports import export_one, table_of
from tests.export.test_buckets import delta_options, iceberg_options, names_in, offsets_in
from tests.faulty_proxy import FLEETING, Fault, Faulty, in_front_of
from tests.object_stores import ObjectStore
from tests.rmqctl.calls import ROOT, Result, call, environment

STORE: Final = "clean-533"
OFFSETS: Final = sorted(message["phyOffset"] for message in stores.truth(STORE)["messages"])
_RATE: Final = 0.1
_SPLITS: Final = ("--split-size", 60_000, "-o", "json")
_AT_WORK: Final = """
import sys
from store_core.storage.objects import objects_at
from store_core.storage.remote_path import path_of
objects_at(path_of(sys.argv[1]))"""
_REMOVES: Final = _AT_WORK + '.remove("note")'
# As often as Azure's client asks by itself, behind more attempts than a broken answer is worth.
_GARBLED: Final = range(4, 8)
_WRITES: Final = _AT_WORK + '.write("note", b"after")'


def drawn(seed: str, faults: Sequence[Fault]) -> Faulty:
    """Some of all requests meet one of these faults."""
    dice = random.Random(seed)
    return Faulty(lambda *_: dice.choice(faults) if dice.random() < _RATE else None)


def exported(store: ObjectStore, faulty: Faulty, *words: object, jobs: int = 2) -> list[Result]:
    """What ``export`` says each time, three times at most through the faults and then without, until it has ended."""
    said: list[Result] = []
    with in_front_of(store, faulty) as behind:
        for place in (behind, behind, behind, store):
            said.append(call("export", *words, "--jobs", jobs, *_SPLITS, **place.environment))
            if said[-1].code == 0:
                break
    for one in said:
        assert one.code in (0, 1, 11), one.err
        assert "Traceback" not in one.err
        assert "\x1b" not in one.err
    assert said[-1].code == 0, said[-1].err
    return said


def test_a_store_is_read_through_faults(golden: GoldenStore, object_store: ObjectStore, tmp_path: Path) -> None:
    """But short answers: S3's client takes them for whole ones, and nothing tells what it made up. Others' do not; Azure's ends
    the process where it is a listing."""
    faulty = drawn("reading", [fault for fault in FLEETING if fault is not Fault.SHORT])
    exported(object_store, faulty, tmp_path / "out", "-s", f"a={object_store.put(golden(STORE))}")
    assert faulty.met
    assert table_of(tmp_path / "out")["phy_offset"].to_pylist() == OFFSETS
    assert table_of(tmp_path / "out", "quarantine").num_rows == 0


def test_a_wrong_length_is_asked_for_again(golden: GoldenStore, object_store: ObjectStore, tmp_path: Path) -> None:
    """It would be taken for the end of a file, and all behind it for damage."""
    turns = Counter[str]()

    def fault_of(method: str, path: str) -> Fault | None:
        if method != "HEAD" or "/commitlog/0" not in path:
            return None
        turns[path] += 1
        return Fault.SHORT if turns[path] % 2 else None

    faulty = Faulty(fault_of)
    address = object_store.put(golden(STORE))
    [done] = exported(object_store, faulty, tmp_path / "out", "-s", f"a={address}", jobs=1)
    assert len(faulty.met) > 1
    assert done.json["stores"][0]["findings"] == []
    assert table_of(tmp_path / "out")["phy_offset"].to_pylist() == OFFSETS


def test_a_length_that_stays_wrong_is_an_error(golden: GoldenStore, object_store: ObjectStore, tmp_path: Path) -> None:
    faulty = Faulty(lambda method, path: Fault.SHORT if method == "HEAD" and "/commitlog/0" in path else None)
    address = object_store.put(golden(STORE))
    with in_front_of(object_store, faulty) as store:
        for words in (("export", tmp_path / "out", *_SPLITS), ("verify-crc", "-o", "json")):
            done = call(*words, "-s", address, **store.environment)
            assert (done.code, "Traceback" in done.err) == (1, False)
            assert "lists 262144 bytes of it, and says that it has 131072" in done.err


def test_a_small_file_is_written_with_one_request(golden: GoldenStore, object_store: ObjectStore) -> None:
    asked: list[tuple[str, str]] = []
    faulty = Faulty(lambda *request: asked.append(request))
    address = object_store.address("one")
    [done] = exported(object_store, faulty, address, "-s", f"a={golden(STORE)}")
    assert done.json["rows"] == len(OFFSETS)
    assert {method for method, _ in asked} == {"GET", "HEAD", "PUT", "DELETE"}
    files = [path for method, path in asked if method == "PUT" and path.endswith(".parquet")]
    assert len(files) == len(set(files)) >= 4


@pytest.mark.product(1)
@pytest.mark.parametrize("faults", [FLEETING, [Fault.UNANSWERED]], ids=["all", "unanswered"])
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_result_is_written_through_faults(
    kind: str, faults: Sequence[Fault], golden: GoldenStore, object_store: ObjectStore, tmp_path: Path
) -> None:
    faulty = drawn(kind, faults)
    address = object_store.address(f"faults/{kind}-{len(faults)}")
    catalog = ["--catalog", f"sqlite:///{tmp_path}/catalog.db"] if kind == "iceberg" else []
    exported(object_store, faulty, address, "-s", f"a={golden(STORE)}", "--format", kind, *catalog)
    assert faulty.met
    assert rows_at(kind, object_store, address, tmp_path) == OFFSETS
    assert not any(name.startswith("_unfinished") for name in names_in(object_store, address))


@pytest.mark.product(1)
@pytest.mark.parametrize("any_object_store", ["gs"], indirect=True)
@pytest.mark.parametrize("name", ["begun.json", "data%2Fa-"])
def test_not_found_where_the_bucket_is_there(any_object_store: ObjectStore, golden: GoldenStore, name: str) -> None:
    """Somebody who is no object store answers a single request; the result is what it is without."""
    met: list[str] = []

    def fault_of(method: str, path: str) -> Fault | None:
        if method != "POST" or name not in path or met:
            return None
        met.append(path)
        return Fault.NOT_FOUND

    address = any_object_store.address(f"not-found/{name[:4]}")
    words = ("export", address, "-s", f"a={golden(STORE)}", *_SPLITS)
    with in_front_of(any_object_store, Faulty(fault_of)) as behind:
        done = call(*words, **behind.environment)
    assert (done.code, len(met)) == (1, 1), done.err
    assert "the object store does not answer as it should" in done.err
    assert "check the endpoint, and run the command again" in done.err
    assert call(*words, **any_object_store.environment).code == 0
    assert offsets_in(any_object_store, address) == OFFSETS


@pytest.mark.parametrize("any_object_store", ["abfss"], indirect=True)
def test_a_lease_that_the_killed_leave_is_waited_for(any_object_store: ObjectStore) -> None:
    """Azure's client holds a file while it removes it: for fifteen seconds nobody else writes or removes it. Of an answer that says
    so and comes broken there is another one."""
    address = any_object_store.address("leased")
    objects = objects_at(path_of(address))
    objects.write("note", b"before")
    at_work: list[subprocess.Popen[bytes]] = []
    writes: list[str] = []

    def fault_of(method: str, path: str) -> Fault | None:
        if method == "DELETE":
            at_work[0].kill()
            return Fault.LOST
        if method == "PUT" and len(at_work) == 2:
            writes.append(path)
            return Fault.GARBLED if len(writes) in _GARBLED else None
        return None

    with in_front_of(any_object_store, Faulty(fault_of)) as behind:
        for program, code in ((_REMOVES, -signal.SIGKILL), (_WRITES, 0)):
            words = [sys.executable, "-c", program, address]
            at_work.append(subprocess.Popen(words, cwd=ROOT, env=environment(**behind.environment)))
            assert at_work[-1].wait(60) == code
    assert len(writes) > max(_GARBLED)
    assert objects.read("note") == b"after"
    objects.remove("note")
    assert objects.names("") == []


def rows_at(kind: str, store: ObjectStore, address: str, tmp_path: Path) -> list[int]:
    """The offsets of a result's messages, as its readers find them."""
    found: list[int]
    if kind == "parquet":
        return offsets_in(store, address)
    if kind == "delta":
        from deltalake import DeltaTable

        found = (
            DeltaTable(f"{address}/data", storage_options=delta_options(store))
            .to_pyarrow_table()["phy_offset"]
            .to_pylist()
        )
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("rmqctl", uri=f"sqlite:///{tmp_path}/catalog.db", **iceberg_options(store))
        found = catalog.load_table("rmqctl.messages").scan().to_arrow()["phy_offset"].to_pylist()
    return sorted(found)


@pytest.mark.product(1)
def test_listings_of_a_result_break_off(golden: GoldenStore, any_object_store: ObjectStore) -> None:
    """Each at first. Azure's client does not ask again by itself. What it asks before it writes is not meant: that is no reading."""
    address = any_object_store.address("broken/out")
    turns = Counter[str]()

    def fault_of(method: str, path: str) -> Fault | None:
        if method != "GET" or "prefix=broken" not in path or "maxresults" in path:
            return None
        turns[path] += 1
        return Fault.CUT if turns[path] == 1 else None

    faulty = Faulty(fault_of)
    [done] = exported(any_object_store, faulty, address, "-s", f"a={golden(STORE)}")
    assert faulty.met
    assert json.loads(done.out)["rows"] == len(OFFSETS)
    assert offsets_in(any_object_store, address) == OFFSETS


@pytest.mark.product(1)
@pytest.mark.parametrize("table", ["data", "quarantine"])
def test_a_commit_whose_answer_is_lost_is_in(table: str, golden: GoldenStore, object_store: ObjectStore) -> None:
    """Whoever asks again finds a commit in its way, which is its own."""
    left = [1]

    def fault_of(method: str, path: str) -> Fault | None:
        is_commit = method == "PUT" and f"/{table}/_delta_log/" in path and path.partition("?")[0].endswith(".json")
        return Fault.UNANSWERED if is_commit and left and left.pop() else None

    faulty = Faulty(fault_of)
    address = object_store.address(f"lost-{table}")
    [done] = exported(object_store, faulty, address, "-s", f"a={golden(STORE)}", "--format", "delta")
    assert len(faulty.met) == 1
    assert json.loads(done.out)["rows"] == len(OFFSETS)
    assert rows_at("delta", object_store, address, Path()) == OFFSETS


@pytest.mark.product(1)
@pytest.mark.parametrize("what", ["manifest.json", "list-type", "DELETE"])
def test_tidying_behind_a_published_result_does_not_fail_it(
    what: str, golden: GoldenStore, object_store: ObjectStore
) -> None:
    published: list[str] = []

    def fault_of(method: str, path: str) -> Fault | None:
        if method == "PUT" and path.partition("?")[0].endswith("/out/manifest.json"):
            published.append(path)
        is_meant = what in f"{method} {path}" and "_unfinished" not in path
        return Fault.REFUSED if published and is_meant and method in ("GET", "DELETE") else None

    address = object_store.address(f"tidy-{what}/out")
    with object_store.files.open_output_stream(
        object_store.key(f"{address}/data/a-{0:020d}-0123456789ab.parquet")
    ) as out:
        out.write(b"of an export that did not end")
    faulty = Faulty(fault_of)
    [done] = exported(object_store, faulty, address, "-s", f"a={golden(STORE)}")
    assert faulty.met
    assert json.loads(done.out)["rows"] == len(OFFSETS)
    assert rows_at("parquet", object_store, address, Path()) == OFFSETS
    assert not any(name.startswith("_unfinished") for name in names_in(object_store, address))


@pytest.mark.product(1)
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_where_nothing_may_be_removed(
    kind: str, golden: GoldenStore, object_store: ObjectStore, tmp_path: Path
) -> None:
    """A result stands, is known by the next command, and the same may replace it again and again."""
    faulty = Faulty(lambda method, path: Fault.FORBIDDEN if method == "DELETE" or "?delete" in path else None)
    address = object_store.address(f"kept-{kind}")
    catalog = ("--catalog", f"sqlite:///{tmp_path}/catalog.db") if kind == "iceberg" else ()
    said: list[tuple[int, int | None]] = []
    left: list[bool] = []
    with in_front_of(object_store, faulty) as behind:
        for more in ((), (), ("--overwrite",), ("--overwrite",), ("--incremental",)):
            words = ("export", address, "-s", f"a={golden(STORE)}", "--format", kind, *catalog, *more)
            done = call(*words, *_SPLITS, **behind.environment)
            said.append((done.code, json.loads(done.out).get("rows")))
            assert "Traceback" not in done.err
            left.append("belong to no result any more could not be removed (access is denied" in done.err)
    every = (0, len(OFFSETS))
    assert (said, bool(faulty.met)) == ([every, (2, None), every, every, (0, 0)], True)
    assert left == [False, False, *([kind == "parquet"] * 2), False]
    assert rows_at(kind, object_store, address, tmp_path) == OFFSETS


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_place_that_may_not_be_written_to(
    kind: Format, golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / "out"))

    monkeypatch.setattr(FileOps, "mkdir", refuse)
    with pytest.raises(FailedError, match="name a folder that may be written to"):
        export_one(golden(STORE), destination_of(tmp_path / "out", kind))


def test_what_a_library_says_has_no_colours() -> None:
    with pytest.raises(FailedError, match="reading: no such ↳ table"), told("s3://bucket", "reading"):
        raise OSError("no such \x1b[31m↳\x1b[0m table")


@pytest.mark.parametrize(
    ("address", "said", "to_do"),
    [
        (
            "abfss://box@account/out",
            "Kernel error -> Generic MicrosoftAzure error ↳ Error getting list response body ↳ error reading a body from connection "
            "↳ end of file before message length reached",
            "run the command again",
        ),
        (
            "gs://box/out",
            "Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
            "run the command again",
        ),
        ("gs://box/out", "The schema has changed", "see what it says"),
        (
            "/data/out",
            "(sqlite3.OperationalError) database or disk is full (Background on this error at: https://sqlalche.me/e/20/e3q8)",
            "make room",
        ),
        ("/data/out", "Generic LocalFileSystem error ↳ No space left on device (os error 28)", "make room"),
        ("/data/out", "(sqlite3.OperationalError) unable to open database file", "see whether its folder"),
        ("/data/out", "Parquet magic bytes not found in footer.", "see what it says"),
        (
            "s3://box/out",
            "(sqlite3.OperationalError) database is locked",
            "wait for the process that has the catalog open",
        ),
    ],
)
def test_what_a_library_says_becomes_advice(address: str, said: str, to_do: str) -> None:
    with pytest.raises(FailedError) as failed, told(address, "committing"):
        raise OSError(said)
    assert failed.value.to_do.startswith(to_do)
    assert "Background" not in failed.value.what


def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where, and nothing is left of what could be made."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "new" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(FailedError, match=f"No space left on device \\({out}\\): make room"):
            ResultFolder(out, ("data",)).__enter__()
    assert not out.parent.exists()
