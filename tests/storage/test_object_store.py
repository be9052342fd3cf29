"""Listings and bytes out of object stores: servers on loopback (tests/object_stores.py)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, NotAStoreError
from store_core.layout import paths
from store_core.scan import log
from store_core.storage import object_store as module
from store_core.storage.files import FileCache, open_file, open_read_only, read_whole
from store_core.storage.object_store import Bucket, RemoteCache, bucket_of
from store_core.storage.remote_errors import told
from store_core.storage.remote_path import RemotePath, path_of, scan_folder
from store_core.storage.store import Store
from tests.object_stores import ObjectStore

GoldenStore = Callable[[str], Path]


@pytest.fixture
def segment(golden: GoldenStore, any_object_store: ObjectStore) -> tuple[RemotePath, bytes]:
    """A remote segment and what it holds."""
    root = golden("clean-533")
    name = Path(paths.COMMITLOG) / "00000000000000000000"
    path = path_of(any_object_store.put(root)) / name
    assert isinstance(path, RemotePath)
    return path, (root / name).read_bytes()


def test_bytes_by_position(segment: tuple[RemotePath, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = segment
    monkeypatch.setattr(module, "_BLOCK_SIZE_BYTES", 1000)
    monkeypatch.setattr(module, "_MOST_BLOCKS", 3)
    monkeypatch.setattr(module, "_RANGE_SIZE_BYTES", 7000)
    cache = RemoteCache()
    drawn = random.Random(5)
    ranges = [(drawn.randrange(len(data) + 2000), drawn.choice((1, 20, 999, 2500, 9000))) for _ in range(60)]
    for at, size in [(0, 0), (0, 1000), (len(data) - 1, 10), (len(data), 1), *ranges]:
        assert cache.read(path, at, size) == data[at : at + size]
        buffer = bytearray(b"?" * size)
        count = cache.read_into(path, at, memoryview(buffer))
        assert bytes(buffer) == data[at : at + size] + b"?" * (size - count)
    assert cache.next_data(path, 17) == 17
    cache.close()
    assert cache.read(path, 5, 5) == data[5:10]
    cache.close()


def test_small_reads_share_requests(segment: tuple[RemotePath, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = segment
    asked: list[int] = []
    real = module.RemoteFile.read

    def counted(self: Any, at: int, size_bytes: int) -> bytes:
        asked.append(size_bytes)
        return real(self, at, size_bytes)

    monkeypatch.setattr(module.RemoteFile, "read", counted)
    cache = RemoteCache()
    assert b"".join(cache.read(path, at, 20) for at in range(0, 20_000, 20)) == data[:20_000]
    assert len(asked) == 1


def test_a_read_that_brings_too_little_ends(segment: tuple[RemotePath, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = segment
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0)
    monkeypatch.setattr(module, "_SLOWEST_BYTES_PER_SECOND", 1000)
    over = threading.Event()
    file = module.RemoteFile(path)

    class Slow:
        def read_at(self, size_bytes: int, at: int) -> bytes:
            over.wait(20)
            return data[at : at + size_bytes]

    monkeypatch.setattr(file, "_file", Slow())
    with pytest.raises(FailedError, match="does not answer"):
        file.read(0, 100)
    over.set()
    assert file.read(5, 5000) == data[5:5005]


def test_a_file_that_is_not_there_is_empty(segment: tuple[RemotePath, bytes]) -> None:
    path = segment[0].with_name("00000000000099999999")
    cache = RemoteCache()
    assert (cache.read(path, 0, 10), cache.read_into(path, 0, memoryview(bytearray(10)))) == (b"", 0)
    with pytest.raises(FileNotFoundError):
        open_file(path)
    with pytest.raises(FileNotFoundError):
        path.stat()
    assert (path.exists(), path.is_file(), path.is_dir()) == (False, False, False)


def test_a_file_that_goes_away_while_it_is_read(any_object_store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    path = path_of(any_object_store.put(tmp_path)) / "file"
    assert isinstance(path, RemotePath)
    file = open_file(path)
    files, key = module.client_of(path)
    files.delete_file(key)
    with pytest.raises(FailedError, match=r"a file went away while it was read.*: run the command again"):
        file.read(0, 100_000)


@pytest.mark.parametrize(("wrong_answers", "data"), [(1, b"there"), (2, b"there"), (9, None), (9, b"")])
def test_a_wrong_answer_does_not_make_a_listed_file_empty(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_answers: int, data: bytes | None
) -> None:
    (tmp_path / "file").write_bytes(b"there")
    path = path_of(object_store.put(tmp_path)) / "file"
    assert isinstance(path, RemotePath)
    bucket = bucket_of(path)
    real = bucket._files
    left = [None] * wrong_answers

    class Client:
        get_file_info = real.get_file_info

        def open_input_file(self, name: str) -> Any:
            if left:
                left.pop()
                raise FileNotFoundError(name)
            return real.open_input_file(name)

    monkeypatch.setattr(bucket, "_files", Client())
    with scan_folder(path.parent) as entries:
        assert [entry.name for entry in entries] == ["file"]
    if data == b"":  # it is gone indeed, and not asked for again
        real.delete_file(object_store.key(str(path)))
        assert RemoteCache().read(path, 0, 5) == b""
        asked = len(left)
        assert (RemoteCache().read(path, 0, 5), asked - len(left)) == (b"", 1)
    elif data is None:
        with pytest.raises(FailedError, match="says that it is there, and that it is not"):
            RemoteCache().read(path, 0, 5)
    else:
        assert RemoteCache().read(path, 0, 5) == data


def test_a_folder_is_no_file_that_contradicts_itself(object_store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"there")
    path = path_of(object_store.put(tmp_path)) / "folder"
    with scan_folder(path.parent) as entries:
        assert [entry.name for entry in entries] == ["folder"]
    assert RemoteCache().read(path, 0, 5) == b""


def test_a_whole_file_is_fetched(segment: tuple[RemotePath, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = segment
    monkeypatch.setattr(module, "_FETCHED_SIZE_BYTES", 100_000)
    assert read_whole(path) == data
    cache = FileCache()  # what maps files asks for descriptors
    assert cache.read(path, 100, 50) == data[100:150]
    cache.close()
    with open(open_read_only(path), "rb") as file:
        assert file.seek(0, 2) == len(data)


def test_a_store_is_listed_as_it_lies(golden: GoldenStore, any_object_store: ObjectStore) -> None:
    root = golden("cqext-533")
    with Store.open(root) as local, Store.open(any_object_store.put(root)) as remote:
        assert remote.root.is_dir()
        assert [(s.name, s.size_bytes) for s in remote.log.segments] == [
            (s.name, s.size_bytes) for s in local.log.segments
        ]
        for tree in ("queues", "batch_queues", "ext_queues"):
            here, there = getattr(local, tree), getattr(remote, tree)
            assert {key: [(s.name, s.size_bytes) for s in files.segments] for key, files in there.items()} == {
                key: [(s.name, s.size_bytes) for s in files.segments] for key, files in here.items()
            }
        assert [path.name for path in remote.index_files] == [path.name for path in local.index_files]
        assert remote.queue("no such topic", 0) is None
        assert remote.relative(remote.log.segments[0].path) == local.relative(local.log.segments[0].path)


def test_listing_asks_little(golden: GoldenStore, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("_ask_for", "_ask_about"):
        real = getattr(Bucket, name)

        def counted(self: Bucket, key: Any, *, real: Any = real, **how: Any) -> Any:
            asked.append("/".join(key[3:]))
            return real(self, key, **how)

        monkeypatch.setattr(Bucket, name, counted)
    with Store.open(object_store.put(golden("clean-533"))) as store:
        assert len(store.queues) == 36
        assert store.log.segments
        assert store.queue("TopicTest", 0) is None
        for name in ("checkpoint", "config/topics.json", "config/no.json", "nothing/at/all", "consumequeue/none"):
            (store.root / name).exists()
    assert sorted(asked) == ["", "commitlog", "config", "consumequeue"]


def test_listings_that_tell_no_folders(golden: GoldenStore, object_store: ObjectStore) -> None:
    """Google's listings do not: everything below is asked for, at once."""
    root = path_of(object_store.put(golden("cqext-533")))
    assert isinstance(root, RemotePath)
    usual, other = bucket_of(root), Bucket(bucket_of(root)._files, lists_folders=False)
    for path in (root, root / "consumequeue", root / "consumequeue" / "nothing", root / "config"):
        assert {name: entry.is_folder for name, entry in other.folder(path).items()} == {
            name: entry.is_folder for name, entry in usual.folder(path).items()
        }
    assert other.stat(root).is_folder
    assert not other.stat(root / "checkpoint").is_folder
    with pytest.raises(FileNotFoundError):
        other.stat(root / "no such file")


def test_what_was_put_since_is_seen_by_who_opens_anew(golden: GoldenStore, object_store: ObjectStore) -> None:
    address = object_store.put(golden("lmq-533"))
    with Store.open(address) as store:
        before = [segment.name for segment in store.log.segments]
    new = f"{int(before[-1]) + 65536:020d}"
    key = f"{address.removeprefix('s3://')}/commitlog/{new}"
    with object_store.files.open_output_stream(key) as out:
        out.write(bytes(65536))
    with Store.open(address) as store:
        assert [segment.name for segment in store.log.segments] == [*before, new]
    object_store.files.delete_file(key)


def test_folders_and_files_are_told_apart(golden: GoldenStore, any_object_store: ObjectStore) -> None:
    root = path_of(any_object_store.put(golden("clean-533")))
    for path, is_folder in [(root, True), (root / "config", True), (root / "checkpoint", False)]:
        assert (path.exists(), path.is_dir(), path.is_file()) == (True, is_folder, not is_folder)
    with scan_folder(root) as entries:
        found = {entry.name: entry.is_dir() for entry in entries}
    assert found["commitlog"]
    assert not found["checkpoint"]


def test_a_log_is_walked_in_windows_that_are_read_ahead(
    golden: GoldenStore, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden("clean-533")
    monkeypatch.setattr(log, "REMOTE_WINDOW_SIZE_BYTES", 30_000)
    monkeypatch.setattr(module, "_RANGE_SIZE_BYTES", 7_000)
    windows: list[int] = []
    real = module.RemoteFile.read_into

    def counted(self: Any, at: int, buffer: memoryview) -> int:
        windows.append(len(buffer))
        return real(self, at, buffer)

    monkeypatch.setattr(module.RemoteFile, "read_into", counted)
    with Store.open(root) as local, Store.open(object_store.put(root)) as remote:
        here, there = (
            [
                (int(at), int(size))
                for table in log.scan_log(store)
                for at, size in zip(table.phy_offset, table.size_bytes, strict=True)
            ]
            for store in (local, remote)
        )
    assert here == there
    assert len(windows) > 5 * len(remote.log.segments)
    assert max(windows) < 200_000  # a record that is longer than a window


@pytest.mark.parametrize("wrong", ["bucket", "folder"])
def test_nothing_there_is_no_store(wrong: str, any_object_store: ObjectStore) -> None:
    address = any_object_store.address("nothing/here")
    if wrong == "bucket":
        address = address.replace("//stores", "//no-such-bucket")
    with pytest.raises(NotAStoreError) as refused:
        Store.open(address)
    assert str(refused.value).startswith(f"no such bucket, or nothing in that folder ({address}): ")


def test_another_folder_is_no_store(golden: GoldenStore, object_store: ObjectStore) -> None:
    with pytest.raises(NotAStoreError) as refused:
        Store.open(object_store.put(golden("clean-533")) + "/config")
    assert refused.value.what == "not a RocketMQ store: no commitlog, consumequeue or checkpoint in it"


# What the clients really said, gathered from servers that refused.
@pytest.mark.parametrize(
    ("scheme", "said", "what", "to_do"),
    [
        (
            "s3",
            "When listing objects under key 'a/' in bucket 'b': AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation: "
            "The AWS Access Key Id you provided does not exist in our records. (Request ID: abc)",
            "the credentials are missing or wrong (The AWS Access Key Id you provided does not exist in our records.)",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ",
        ),
        (
            "s3",
            "When listing objects under key 'a/' in bucket 'b': AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: "
            "curlCode: 7, Could not connect to server; Details: Failed to connect",
            "the object store does not answer (curlCode: 7, Could not connect to server)",
            "check the network and the endpoint",
        ),
        (
            "s3",
            "When reading information for key 'a' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
            "access is denied (No response body.)",
            "set AWS_ACCESS_KEY_ID",
        ),
        (
            "gs",
            "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of Could not create a OAuth2 access "
            "token to authenticate the request.",
            "the credentials are missing or wrong",
            "set GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            "abfss",
            "Failed to list blobs in a directory: box/a: http://127.0.0.1:10077/box Azure Error: [AuthorizationFailure] 403 Server "
            "failed to authenticate the request. Make sure the value of the Authorization header is formed correctly",
            "the credentials are missing or wrong ([AuthorizationFailure] 403)",
            "set AZURE_STORAGE_KEY",
        ),
        (
            "s3",
            "When listing objects under key 'a/' in bucket 'b': AWS Error SLOW_DOWN during ListObjectsV2 operation: Please reduce "
            "your request rate. (Request ID: abc)",
            "the object store is busy, or fails (Please reduce your request rate.)",
            "run the command again later",
        ),
        (
            "s3",
            "When getting information for key 'a' in bucket 'b': AWS Error UNKNOWN (HTTP status 500) during HeadObject operation: "
            "No response body.",
            "the object store is busy, or fails (No response body.)",
            "run the command again later",
        ),
        (
            "gs",
            "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of PerformWork() - CURL error "
            "[52]=Server returned nothing (no headers, no data) error_info={reason=, domain=, metadata={gcloud-cpp.retry.on-entry="
            "false, gcloud-cpp.retry.function=ListObjects, gcloud-cpp.retry.reason=retry-policy-exhausted, "
            "gcloud-cpp.retry.original-message=PerformWork() - CURL error [52]=Server returned nothing (no headers, no data)}})",
            "the object store does not answer",
            "check the network and the endpoint, and run the command again",
        ),
        (
            "gs",
            'google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of {"error":{"code":503,"message":'
            '"Backend Error"}} error_info={reason=, domain=, metadata={gcloud-cpp.retry.function=GetObjectMetadata}})',
            "the object store is busy, or fails",
            "run the command again later",
        ),
        (
            "abfss",
            "Check for Hierarchical Namespace support on 'http://127.0.0.1:35323/box/stores' failed. Azure Error: [] 500 Internal "
            "Server Error\n\nRequest ID: ",
            "the object store is busy, or fails (500 Internal Server Error)",
            "run the command again later",
        ),
        (
            "abfss",
            "Check for Hierarchical Namespace support on 'http://127.0.0.1:44827/box/stores' failed. Azure Error: [] Error while "
            "sending request. Failure when receiving data from the peer",
            "the object store does not answer (Error while sending request)",
            "check the network and the endpoint, and run the command again",
        ),
        (
            "abfss",
            "Failed to list blobs in a directory: stores/a: http://127.0.0.1:35029/box/stores Azure Error: [] Connection closed "
            "before getting full response or response is less than expected. Expected response length = 2088. Read until now = 1044",
            "the object store does not answer (Connection closed before getting full response or response is less than expected)",
            "check the network and the endpoint, and run the command again",
        ),
        (
            "abfss",
            "Failed to acquire a lease on file 'stores/x': http://127.0.0.1:1/box/stores/x Azure Error: [LeaseAlreadyPresent] 409 "
            "There is already a lease present.\nThere is already a lease present.\nRequestId:",
            "another process is at work on the file, or was killed meanwhile ([LeaseAlreadyPresent] 409)",
            "run the command again in half a minute",
        ),
        (
            "s3",
            "When reading information for key 'a' in bucket 'b': AWS Error RESOURCE_NOT_FOUND during GetObject operation: ",
            "a file went away while it was read",
            "run the command again",
        ),
        ("s3", "something\n nobody   knows", "something nobody knows", "see what it says"),
    ],
)
def test_what_a_client_says_becomes_advice(scheme: str, said: str, what: str, to_do: str) -> None:
    path = path_of(f"{scheme}://b/a")
    assert isinstance(path, RemotePath)
    with pytest.raises(FailedError) as failed, told(path):
        raise OSError(said)
    assert failed.value.what == what
    assert failed.value.to_do.startswith(to_do)


def test_one_client_for_a_bucket(object_store: ObjectStore) -> None:
    one, two = path_of("s3://stores/a"), path_of("s3://stores/b/c")
    assert isinstance(one, RemotePath)
    assert isinstance(two, RemotePath)
    assert bucket_of(one) is bucket_of(two)
