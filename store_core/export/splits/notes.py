"""Notes about finished splits: what a rerun needs in order not to do them again, and how it knows that it is the same split."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, Final

from crc32c import crc32c

from store_core.export.rows import schema
from store_core.export.splits.piece import Piece
from store_core.export.splits.plan import Task, segments_of
from store_core.storage.sequence import Segment, SegmentSequence

_HEAD: Final = b"rmqctl note 3\n"
_CHECKSUM_SIZE_BYTES: Final = 4
# All that a piece is made of. A note is read from where results are written, so it may name nothing else.
_KNOWN: Final = frozenset(
    (
        "store_core.export.splits.piece.Piece",
        "store_core.export.splits.plan.Split",
        "store_core.export.dest.parts.Part",
        "store_core.export.dest.parts.Range",
        "store_core.export.dest.state.Proof",
        "store_core.check.log.LogFindings",
        "store_core.check.report.Findings",
        "store_core.findings.Finding",
        "collections.Counter",
        "copyreg._reconstructor",
        "builtins.object",
    )
)


def task_keys(tasks: Sequence[Task], log: SegmentSequence) -> list[str]:
    """For each of some tasks that differ by their splits alone, a fingerprint of all that its outcome depends on: what is
    asked for, and the files that it reads.

    Changed files are told by length and times, the one that nobody can set included.
    """
    if not tasks:
        return []
    common = _digest(
        {
            "schema": schema.VERSION,
            "store": tasks[0].store,
            "stem": tasks[0].stem,
            "settings": asdict(tasks[0].settings),
            "wanted": {**asdict(tasks[0].wanted), "topics": sorted(tasks[0].wanted.topics)},
            "layout": asdict(tasks[0].layout),
        }
    )
    seen: dict[int, list[Any]] = {}  # by offset: a segment lies in several splits
    keys: list[str] = []
    for task in tasks:
        read = [segment for segment, _ in segments_of(log, task.split)]
        for segment in read:
            if segment.phy_offset not in seen:
                seen[segment.phy_offset] = _identity(segment)
        keys.append(_digest([common, asdict(task.split), [seen[segment.phy_offset] for segment in read]]))
    return keys


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_plain).encode()).hexdigest()[:32]


def plan_fingerprint(keys: Iterable[str]) -> str:
    """A fingerprint of a whole plan from those of its tasks, in order."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]


def note_of(piece: Piece) -> bytes:
    """A piece as bytes that show whether they are whole."""
    data = pickle.dumps(piece)
    return _HEAD + crc32c(data).to_bytes(_CHECKSUM_SIZE_BYTES, "big") + data


def piece_of(note: bytes) -> Piece | None:
    """The piece of a note; None for bytes that are none."""
    data = note[len(_HEAD) + _CHECKSUM_SIZE_BYTES :]
    checksum = note[len(_HEAD) : len(_HEAD) + _CHECKSUM_SIZE_BYTES]
    if not note.startswith(_HEAD) or checksum != crc32c(data).to_bytes(_CHECKSUM_SIZE_BYTES, "big"):
        return None
    with suppress(Exception):  # whatever else may be wrong with foreign bytes
        found = _Unpickler(io.BytesIO(data)).load()
        return found if isinstance(found, Piece) else None
    return None


class _Unpickler(pickle.Unpickler):
    """Makes pieces and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise pickle.UnpicklingError(f"a note names {module}.{name}")
        return super().find_class(module, name)


def _identity(segment: Segment) -> list[Any]:
    changed_ns = None
    with suppress(OSError):
        changed_ns = segment.path.stat().st_ctime_ns
    return [segment.name, segment.phy_offset, segment.size_bytes, segment.mtime_ns, changed_ns]


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    return dict(value)
