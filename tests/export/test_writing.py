"""A disk that refuses in the middle of an export leaves neither a file nor a word behind, but one error."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError
from store_core.export.dest import parquet
from store_core.export.dest.parts import PartWriter, Range, quarantine_rows
from store_core.export.dest.place import StagingFolder
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.storage import part_file
from tests.threads import running

ROWS = quarantine_rows("s", [(Range(FrameKind.DAMAGE, FrameCode.SIZE, 7, 8, "commitlog/0"), "L002")])


@pytest.mark.parametrize(("fails_at", "times_before"), [("pwrite", 0), ("pwrite", 1), ("pwrite", 2), ("fsync", 0)])
def test_a_disk_that_refuses(fails_at: str, times_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = getattr(os, fails_at), []

    def refusing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > times_before:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments)

    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    monkeypatch.setattr(os, fails_at, refusing)
    monkeypatch.setattr(parquet, "_BUFFER_SIZE_BYTES", 1)
    monkeypatch.setattr(part_file, "_BLOCK_SIZE_BYTES", 64)  # nearly every write of the library goes to the disk
    with pytest.raises(FailedError, match=r"Input/output error.*ddrescue"):
        write_part(tmp_path)
    gc.collect()
    assert calls
    assert printed == []
    assert list(tmp_path.iterdir()) == []
    assert running(part_file.THREAD) == 0


def write_part(folder: Path) -> None:
    """A function of its own, so that nothing holds the writer when it is over."""
    writer = PartWriter(StagingFolder(folder), "quarantine", "s", "name.parquet")
    writer.write(ROWS)
    writer.close()
