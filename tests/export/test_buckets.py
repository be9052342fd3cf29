"""Exports into object stores of each kind: servers in processes of their own on loopback (tests/object_stores.py)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from pyarrow.fs import FileSelector

from store_core.errors import FailedError, NotAStoreError, StoreInUseError, UsageError
from store_core.export.dest import bucket as bucket_module
from store_core.export.dest.address import destination_of
from store_core.export.dest.bucket import BucketDestination
from store_core.export.dest.object_dest import LooseDestination
from store_core.storage import objects
from store_core.storage.object_store import client_of
from store_core.storage.objects import RemoteObjects, RemotePart, objects_at
from store_core.storage.remote_path import RemotePath, path_of
from tests import azurite
from tests.conftest import GoldenStore, StoreCopy
from tests.export.exports import export_one, found_rows, manifest_of, parts_on_disk, table_of, told_rows
from tests.export.killing import run_killed
from tests.export.test_incremental import ENDS, OFFSETS, STORE, Growing
from tests.export.test_lakes import export_to
from tests.object_stores import ObjectStore


@pytest.fixture
def bucket(any_object_store: ObjectStore) -> ObjectStore:
    return any_object_store


@pytest.fixture
def address(bucket: ObjectStore, request: pytest.FixtureRequest) -> str:
    return bucket.address(f"{abs(hash(request.node.name))}/out")


@pytest.fixture
def growing(store_copy: StoreCopy) -> Growing:
    return Growing(store_copy(STORE))


def names_in(bucket: ObjectStore, address: str) -> set[str]:
    from pyarrow.fs import FileSelector, FileType

    top = bucket.key(address)
    found = bucket.files.get_file_info(FileSelector(top, recursive=True, allow_not_found=True))
    return {info.path[len(top) + 1 :] for info in found if info.type == FileType.File}


def manifest_in(bucket: ObjectStore, address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read(bucket, f"{address}/manifest.json"))
    return found


def read(bucket: ObjectStore, address: str) -> bytes:
    with bucket.files.open_input_stream(bucket.key(address)) as stream:
        data: bytes = stream.read()
        return data


def offsets_in(bucket: ObjectStore, address: str) -> list[int]:
    """By the manifest, which says what belongs to an export."""
    found: list[int] = []
    for file in manifest_in(bucket, address)["files"]:
        if file["table"] == "messages":
            path = bucket.key(f"{address}/{file['path']}")
            found += pq.read_table(path, filesystem=bucket.files, partitioning=None)["phy_offset"].to_pylist()
    return sorted(found)


def test_files_and_manifest(golden: GoldenStore, bucket: ObjectStore, address: str) -> None:
    export_one(golden("clean-533"), destination_of(address), split_size_bytes=200_000)
    manifest = manifest_in(bucket, address)
    assert {file["path"] for file in manifest["files"]} | {"manifest.json"} == names_in(bucket, address)
    for file in manifest["files"]:
        data = read(bucket, f"{address}/{file['path']}")
        assert (file["size_bytes"], file["crc32c"]) == (len(data), f"{crc32c(data):08x}")
    table = pq.read_table(bucket.key(f"{address}/data"), filesystem=bucket.files)
    assert found_rows(table.sort_by("phy_offset")) == told_rows("clean-533")


@pytest.mark.product(any_object_store=("s3",))
def test_commits_add_up(growing: Growing, bucket: ObjectStore, address: str) -> None:
    for end in (ENDS[3], ENDS[60], ENDS[60], ENDS[-1]):
        growing.end_at(end)
        export_one(growing.root, destination_of(address, incremental=True), split_size_bytes=60_000)
        assert offsets_in(bucket, address) == [offset for offset in OFFSETS if offset < end]
    assert {file["path"] for file in manifest_in(bucket, address)["files"]} | {"manifest.json"} == names_in(
        bucket, address
    )
    first = manifest_in(bucket, address)["files"][0]["path"]
    bucket.files.delete_file(bucket.key(f"{address}/{first}"))
    told = export_one(growing.root, destination_of(address, incremental=True)).findings
    assert [(found.code, first in found.message) for found in told] == [("X001", True)]
    with pytest.raises(UsageError, match="a finished export is there"):
        export_one(growing.root, destination_of(address))
    growing.end_at(ENDS[9])
    export_one(growing.root, destination_of(address, overwrite=True))
    assert offsets_in(bucket, address) == OFFSETS[:10]


_OBJECTS: Final = "store_core.storage.objects"
REQUESTS: Final = {f"{_OBJECTS}:RemotePart": "close", f"{_OBJECTS}:RemoteObjects": "remove"}


@pytest.mark.product(any_object_store=("s3",))
def test_no_empty_key_is_left(growing: Growing, bucket: ObjectStore, address: str) -> None:
    growing.end_at(ENDS[3])
    export_one(growing.root, destination_of(address))
    folder = path_of(address)
    assert isinstance(folder, RemotePath)
    files, key = client_of(folder)
    found = [info.path for info in files.get_file_info(FileSelector(key))]
    assert not [path for path in found if path.endswith("_unfinished")]


@pytest.mark.product(any_object_store=("s3", "abfss"))
def test_a_real_process_killed_again_and_again(growing: Growing, bucket: ObjectStore, address: str) -> None:
    growing.end_at(3 * 65536)
    words = ["export", address, "-s", f"a={growing.root}", "--split-size", "65536", "--jobs", "1", "-o", "json"]
    for step in range(20):
        done = run_killed(3 * step, REQUESTS, *words, variables=bucket.environment)
        if done.code != -signal.SIGKILL:
            break
    assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    assert step > 2
    assert offsets_in(bucket, address) == [offset for offset in OFFSETS if offset < 3 * 65536]
    assert {file["path"] for file in manifest_in(bucket, address)["files"]} | {"manifest.json"} == names_in(
        bucket, address
    )


@pytest.mark.product(any_object_store=("abfss",))
def test_two_at_once_publish_once(
    growing: Growing, bucket: ObjectStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BucketDestination.commit
    calls: list[int] = []

    def commit(self: Any, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            export_one(growing.root, destination_of(address, incremental=True), split_size_bytes=1 << 30)
        real(self, *arguments)

    monkeypatch.setattr(BucketDestination, "commit", commit)
    with pytest.raises(StoreInUseError, match="run the command again"):
        export_one(growing.root, destination_of(address, incremental=True))
    assert offsets_in(bucket, address) == OFFSETS


def test_tidying_leaves_what_was_published_meanwhile(
    growing: Growing, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, real, calls = object_store.address("meanwhile/out"), bucket_module.paths_of, list[int]()

    def paths_of(manifest: bytes, where: str) -> set[str]:
        calls.append(1)
        if len(calls) == 1:
            growing.end_at(ENDS[-1])
            export_one(growing.root, destination_of(address, incremental=True))
        return real(manifest, where)

    monkeypatch.setattr(bucket_module, "paths_of", paths_of)
    growing.end_at(ENDS[3])
    export_one(growing.root, destination_of(address, incremental=True))
    assert len(calls) > 1
    assert offsets_in(object_store, address) == OFFSETS


@pytest.mark.product(any_object_store=("s3",))
def test_a_part_that_is_given_up_is_gone(bucket: ObjectStore, address: str) -> None:
    destination = destination_of(address)
    assert isinstance(destination, BucketDestination)
    assert isinstance(destination.objects, RemoteObjects)
    part = destination.objects.create("data/x.parquet")
    assert isinstance(part, RemotePart)
    part.write(b"half")
    part.discard()
    del part
    assert names_in(bucket, address) == set()


def delta_options(bucket: ObjectStore) -> dict[str, str]:
    """How readers are told of an emulator."""
    if bucket.kind == "s3":
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{bucket.port}", "AWS_ALLOW_HTTP": "true"}
    return {"azure_storage_account_key": azurite.KEY, "azure_storage_use_emulator": "true"}


def iceberg_options(bucket: ObjectStore) -> dict[str, str]:
    """The same for PyIceberg, where it can be told: its own clients reach neither Azure's addresses nor Google's emulator."""
    if bucket.kind == "s3":
        return {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
    return {"py-io-impl": "store_core.export.dest.iceberg_io.ObjectFileIO"}


@pytest.mark.product(any_object_store=("s3",))
@pytest.mark.parametrize("any_object_store", ["s3", "abfss"], indirect=True)  # the other one lists no table of Delta's
def test_a_delta_table(growing: Growing, bucket: ObjectStore, address: str) -> None:
    from deltalake import DeltaTable

    options = delta_options(bucket)
    for end in (ENDS[3], ENDS[60], ENDS[-1]):
        growing.end_at(end)
        export_to(growing.root, address, "delta", incremental=True)
        table = DeltaTable(f"{address}/data", storage_options=options).to_pyarrow_table()
        assert sorted(table["phy_offset"].to_pylist()) == [offset for offset in OFFSETS if offset < end]


@pytest.mark.product(any_object_store=("s3",))
def test_an_iceberg_table(growing: Growing, bucket: ObjectStore, address: str, tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{tmp_path}/catalog.db"
    for end in (ENDS[3], ENDS[60], ENDS[-1]):
        growing.end_at(end)
        export_to(growing.root, address, "iceberg", incremental=True, catalog=uri)
        table = SqlCatalog("rmqctl", uri=uri, **iceberg_options(bucket)).load_table("rmqctl.messages")
        found = table.scan(selected_fields=("phy_offset",)).to_arrow()["phy_offset"].to_pylist()
        assert sorted(found) == [offset for offset in OFFSETS if offset < end]


@pytest.mark.product(any_object_store=("s3",))
def test_what_stands_in_the_way(golden: GoldenStore, bucket: ObjectStore, address: str) -> None:
    with bucket.files.open_output_stream(bucket.key(f"{address}/mine.txt")) as out:
        out.write(b"precious")
    with pytest.raises(UsageError, match="not empty"):
        export_one(golden(STORE), destination_of(address))
    assert names_in(bucket, address) == {"mine.txt"}
    assert_foreign(golden(STORE), bucket, f"{address}-1", {"data/mine.parquet": b"precious"})
    assert_foreign(
        golden(STORE), bucket, f"{address}-2", {"index/mine": b"precious", "manifest.json": b'{"name": "app"}'}
    )
    with pytest.raises((FailedError, NotAStoreError), match=r"no such bucket|bucket"):
        export_one(golden(STORE), destination_of(address.replace("//stores", "//nosuchbucket")))


@pytest.mark.parametrize("at", ["write", "close"])
def test_an_upload_that_the_store_forgets(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Mock(**{f"{at}.side_effect": FileNotFoundError("404")})
    monkeypatch.setattr(objects, "_files", lambda _: Mock(**{"open_output_stream.return_value": stream}))
    with pytest.raises(FailedError, match="no longer knows of what is being written"):
        objects_at(RemotePath("gs:", "others", "out")).write("note", b"piece")


def assert_foreign(root: Path, bucket: ObjectStore, address: str, files: dict[str, bytes]) -> None:
    """Nothing is exported to where others have files, whatever their names, and these stay."""
    for name, data in files.items():
        with bucket.files.open_output_stream(bucket.key(f"{address}/{name}")) as out:
            out.write(data)
    for overwrite, incremental in ((False, False), (True, False), (False, True)):
        with pytest.raises(UsageError, match="name a new or an empty folder"):
            export_one(root, destination_of(address, overwrite=overwrite, incremental=incremental))
    assert {name: read(bucket, f"{address}/{name}") for name in names_in(bucket, address)} == files


@pytest.mark.product(any_object_store=("s3",))
def test_files_of_others_in_an_export_stay(golden: GoldenStore, bucket: ObjectStore, address: str) -> None:
    export_one(golden(STORE), destination_of(address))
    with bucket.files.open_output_stream(bucket.key(f"{address}/data/mine.txt")) as out:
        out.write(b"precious")
    export_one(golden(STORE), destination_of(address, overwrite=True))
    assert {file["path"] for file in manifest_in(bucket, address)["files"]} | {
        "manifest.json",
        "data/mine.txt",
    } == names_in(bucket, address)


@pytest.mark.parametrize("method", ["commit", "_names"])
def test_one_of_two_at_once_is_refused_and_harms_nothing(
    growing: Growing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As in an object store, which has no lock: the other one ends before this one's commit, or in the middle of it."""
    out = tmp_path / "out"
    monkeypatch.setattr(LooseDestination, "_take_lock", lambda self: None)
    growing.end_at(ENDS[9])
    export_one(growing.root, BucketDestination(out, incremental=True), split_size_bytes=30_000)
    growing.end_at(ENDS[-1])
    real, calls = getattr(BucketDestination, method), []

    def with_a_rival(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            export_one(growing.root, BucketDestination(out, incremental=True), split_size_bytes=41_000)
        return real(self, *arguments)

    monkeypatch.setattr(BucketDestination, method, with_a_rival)
    with pytest.raises(StoreInUseError, match="run the command again"):
        export_one(growing.root, BucketDestination(out, incremental=True), split_size_bytes=17_000)
    assert {file["path"] for file in manifest_of(out)["files"]} <= parts_on_disk(out)
    assert table_of(out)["phy_offset"].to_pylist() == OFFSETS
