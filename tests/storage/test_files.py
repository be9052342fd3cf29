"""Reading from a disk that fails: which range, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, UnreadableError
from store_core.storage.files import FileCache


@pytest.mark.parametrize("call", ["pread", "preadv"])
def test_a_range_that_the_disk_cannot_read(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))

    def refusing(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, refusing)
    cache = FileCache()
    reads = {
        "pread": lambda: cache.read(path, 40, 20),
        "preadv": lambda: cache.read_into(path, 40, memoryview(bytearray(20))),
    }
    with pytest.raises(FailedError) as failed:
        reads[call]()
    cache.close()
    assert str(failed.value) == (
        f"cannot read 20 bytes at 40 of the file: Input/output error ({path}): "
        "the disk fails: copy the store with ddrescue to a good one first, and work on the copy"
    )


def test_a_range_ends_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for all that there may be is told of what there is."""
    path = tmp_path / "topics.json"
    path.write_bytes(bytes(100))

    def refusing(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cache = FileCache()
    monkeypatch.setattr(os, "pread", refusing)
    with pytest.raises(FailedError, match="cannot read 60 bytes at 40 of the file"):
        cache.read(path, 40, 32 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", refusing)  # the disk does not give the file's length either
        with pytest.raises(FailedError, match="cannot read 33554432 bytes at 40 of the file"):
            cache.read(path, 40, 32 << 20)


@pytest.mark.parametrize("reading", ["read", "read_into"])
def test_a_file_that_may_not_be_opened(reading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No range of it is to blame."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))

    def refusing(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refusing)
    cache = FileCache()
    with pytest.raises(FailedError, match="cannot read: Permission denied") as failed:
        cache.read(path, 40, 20) if reading == "read" else cache.read_into(path, 40, memoryview(bytearray(20)))
    assert isinstance(failed.value, UnreadableError)
    assert failed.value.at == 40


def test_what_a_signal_kept_from_being_made_ends_quietly() -> None:
    FileCache.__new__(FileCache).__del__()
