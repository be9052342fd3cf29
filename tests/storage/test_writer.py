"""The writer stays in its places, and says so; digests; the journal's lines."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from store_core.errors import FailedError, UsageError
from store_core.storage import digest
from store_core.storage.digest import Digest, digest_file, digest_range
from store_core.storage.failure import failed
from store_core.storage.journal import State, read_journal, remove_our_folder, start_journal
from store_core.storage.writer import Writer, save_file
from tests.recording import RecordingOps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store/commitlog").mkdir(parents=True)
    return tmp_path / "store"


def test_paths_that_lead_out_of_the_store_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    writer = Writer(root)
    for path in (
        "../x",
        "commitlog/../../x",
        "/etc/passwd",
        str(tmp_path / "x"),
        "linked/x",
        "linked/deeper/x",
        "a\0b",
    ):
        with pytest.raises(UsageError):
            writer.create(path, b"")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_log_folder_outside_is_written_to_only_if_named(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "disk2/commitlog"
    log.mkdir(parents=True)
    (root / "commitlog").rmdir()
    (root / "commitlog").symlink_to(log)
    with pytest.raises(UsageError, match="--commitlog"):
        Writer(root).create("commitlog/0", b"")
    writer = Writer(root, writable_roots=[log])
    writer.create("commitlog/0", b"a")
    writer.create(str(log / "1"), b"b")
    assert writer.places.name(root / "commitlog/1") == str(log / "1")
    with pytest.raises(UsageError):
        writer.create(str(tmp_path / "disk2/other"), b"")


def test_the_last_part_of_a_path_is_no_link_to_follow(root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (root / "commitlog/0").symlink_to(tmp_path / "precious")
    writer = Writer(root)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        writer.write_range("commitlog/0", 0, b"x")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        writer.set_length("commitlog/0", 0)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_creating_leaves_zeros_as_holes_and_never_overwrites(root: Path) -> None:
    writer = Writer(root)
    chunks = [b"a" * 70_000, bytes(1 << 20), b"b", bytes(100_000)]
    assert writer.create("commitlog/0", iter(chunks), size_bytes=2_000_000) == 2_000_000
    path = root / "commitlog/0"
    assert path.read_bytes() == b"".join(chunks).ljust(2_000_000, b"\0")
    assert path.stat().st_blocks * 512 < 1_000_000
    with pytest.raises(FileExistsError):
        writer.create("commitlog/0", b"")


@given(st.lists(st.tuples(st.integers(0, 3 << 16), st.binary(max_size=200))))
def test_created_bytes_are_those_given(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("store")
    chunks = [bytes(zeros) + data for zeros, data in pieces]
    with Writer(root) as writer:
        writer.create("x", iter(chunks))
    assert (root / "x").read_bytes() == b"".join(chunks)


def test_every_change_is_a_primitive(root: Path) -> None:
    ops = RecordingOps(root)
    writer = Writer(root, ops=ops)
    writer.create("a", b"12")
    writer.write_range("a", 1, b"3")
    writer.rename("a", "b")
    writer.set_mtime_ns("b", 7)
    writer.set_mtime_ns("b", 7)
    writer.sync_file("b")
    writer.unlink("b")
    writer.sync_folder("")
    names = [primitive.name for primitive in ops.primitives]
    assert names == ["create", "write", "write", "rename", "set_times", "sync_file", "unlink", "sync_folder"]
    assert ops.primitives[2].arguments == (1, b"3")


def test_setting_a_time_keeps_the_access_time(root: Path) -> None:
    (root / "x").write_bytes(b"")
    os.utime(root / "x", ns=(11, 22))
    Writer(root).set_mtime_ns("x", 33)
    info = (root / "x").stat()
    assert (info.st_atime_ns, info.st_mtime_ns) == (11, 33)


def test_digests_are_the_same_whatever_the_window(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 10
    (root / "x").write_bytes(data)
    for size in (1, 7, 4096):
        monkeypatch.setattr(digest, "WINDOW_SIZE_BYTES", size)
        assert digest_file(root / "x") == Digest(crc32c(data), len(data))
        assert digest_range(root / "x", 5, 100) == Digest(crc32c(data[5:105]), 100)
        assert digest_range(root / "x", 2500, 100) == Digest(crc32c(data[2500:]), 60)
        assert digest_range(root / "x", 9999, 100) == Digest(0, 0)


def test_saving_a_file_replaces_it_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(tmp_path / "plan.json", b"one")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full") as refused:
        save_file(tmp_path / "plan.json", b"two")
    assert refused.value.filename == str(tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_bytes() == b"one"


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EIO, errno.EBUSY]
)
def test_a_refusal_of_the_system_says_what_to_do(number: int) -> None:
    error = failed(OSError(number, os.strerror(number), "/store/x"), "cannot write")
    assert os.strerror(number) in str(error)
    assert error.path == "/store/x"
    assert error.to_do


def test_a_disk_without_room_for_another_file_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, asked = OSError(errno.ENOSPC, "full", str(tmp_path / "new" / "x")), list[Path]()
    info = {"f_files": 12, "f_favail": 0, "f_bavail": 7}

    def statvfs(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(**info)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert "can hold no more files: remove some and run" in str(failed(error, "cannot write"))
    assert asked == [tmp_path]
    for other in ({"f_favail": 1}, {"f_files": 0}, {"f_bavail": 0}):
        monkeypatch.setattr(os, "statvfs", lambda _, other=other: SimpleNamespace(**info | other))
        assert "make room on that file system" in str(failed(error, "cannot write"))


def test_a_journal_reads_back_and_a_torn_tail_is_no_damage(root: Path) -> None:
    writer = Writer(root)
    journal = start_journal(writer, "recover", "abcdef0123456789", policy="keep")
    assert journal.id == "0001-recover-abcdef01"
    journal.append(writer, [{"entry": "original", "path": "x"}])
    journal.mark(writer, State.PREPARED)
    file = root / journal.file
    whole = file.read_bytes()
    marked = whole.index(b'"prepared"') + len(b'"prepared"}\n')  # the end of its first copy
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        found = read_journal(root, journal.id)
        assert found.state is (State.PREPARED if size >= marked else State.PREPARING)
        assert whole[:size].startswith(whole[: found.size_bytes])
    assert [*found.lines("original")] == [{"entry": "original", "path": "x"}]


def test_a_torn_tail_is_cut_off_before_the_next_line(root: Path) -> None:
    writer = Writer(root)
    journal = start_journal(writer, "recover", "abcdef0123456789")
    with (root / journal.file).open("ab") as file:
        file.write(b"00000000 {half a li")
    found = read_journal(root, journal.id)
    found.mark(writer, State.UNDONE)
    assert read_journal(root, journal.id).state is State.UNDONE


def test_no_flipped_bit_makes_a_durable_mark_unsaid(root: Path) -> None:
    writer = Writer(root)
    journal = start_journal(writer, "recover", "abcdef0123456789")
    journal.append(writer, [{"entry": "original", "path": "x"}])
    journal.mark(writer, State.PREPARED)
    whole = (root / journal.file).read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            (root / journal.file).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert understood(root, journal.id) in (State.PREPARED, "damaged")


def understood(root: Path, id: str) -> str:
    try:
        return read_journal(root, id).state
    except FailedError:
        return "damaged"


def test_our_folder_comes_and_goes_without_touching_times(root: Path) -> None:
    os.utime(root, ns=(5, 5))
    writer = Writer(root)
    one, two = (start_journal(writer, "recover", "abcdef0123456789") for _ in range(2))
    assert two.id.startswith("0002")
    assert root.stat().st_mtime_ns == 5
    remove_our_folder(writer, two.folder)
    assert (root / one.file).exists()
    remove_our_folder(writer, one.folder)
    assert [path.name for path in root.iterdir()] == ["commitlog"]
    assert root.stat().st_mtime_ns == 5
