"""Reading from a disk that fails: which range, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError
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


def test_what_a_signal_kept_from_being_made_ends_quietly() -> None:
    FileCache.__new__(FileCache).__del__()
