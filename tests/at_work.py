"""A store as a broker at work changes it, step by step: what it writes, and what it deletes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store_core.layout import index, paths, queue
from tests import stores

STORE: Final = "crash-533"
SEGMENT_BYTES: Final = 131072
ENTRY_BYTES: Final = queue.ENTRY.size_bytes
MESSAGES: Final = stores.truth(STORE)["messages"]


class Broker:
    """A store that goes from what it was at some record to what it is now, and further on to where its oldest files have expired."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()}

    def back_to(self, walked: int, dispatched: int) -> None:
        """Take back what has been written since, and the index."""
        for path in (self.root / paths.INDEX).iterdir():
            path.unlink()
        for path, data in self.now.items():
            at = int(path.name)
            if path.parent.name == paths.COMMITLOG:
                kept = data[: max(MESSAGES[walked]["phyOffset"] - at, 0)].ljust(len(data), b"\0")
            else:
                end = MESSAGES[dispatched]["phyOffset"]
                kept = b"".join(entry for entry in entries_of(data) if struct.unpack(">q", entry[:8])[0] < end)
                kept = kept.ljust(len(data), b"\0")
            path.write_bytes(kept)
            if at and not any(kept):
                path.unlink()

    def go_on(self) -> None:
        """All that was taken back, and what has been harmed meanwhile stays so."""
        for path, data in self.now.items():
            old = path.read_bytes() if path.exists() else b""
            kept = old.rstrip(b"\0")
            if not path.exists() or data.startswith(kept):
                path.write_bytes(data)

    def expire(self, segments: int, trees: tuple[str, ...] = (paths.CONSUMEQUEUE, paths.INDEX)) -> None:
        """As a broker does: the log's oldest files, then the queue files with nothing that is left, then such index files."""
        gone = segments * SEGMENT_BYTES
        for at in range(0, gone, SEGMENT_BYTES):
            (self.root / paths.COMMITLOG / paths.segment_name(at)).unlink(missing_ok=True)
        for folder in (self.root / paths.CONSUMEQUEUE).glob("*/*") if paths.CONSUMEQUEUE in trees else ():
            for path in sorted(folder.iterdir())[:-1]:
                if struct.unpack(">q", path.read_bytes()[-ENTRY_BYTES:][:8])[0] < gone:
                    path.unlink()
        for path in (self.root / paths.INDEX).iterdir() if paths.INDEX in trees else ():
            if index.HEADER.read(path.read_bytes())["end_phy_offset"] < gone:
                path.unlink()


def entries_of(data: bytes) -> Iterator[bytes]:
    return (data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))
