"""Notes about finished splits: what a rerun needs in order not to do them again, and how it knows that it is the same split."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from store_core.export.rows import schema
from store_core.export.splits.plan import Task, segments_of
from store_core.storage.digest import crc32c
from store_core.storage.sequence import Segment, SegmentSequence

Kept = TypeVar("Kept")

_HEAD: Final = b"rmqctl note 5\n"
_CHECKSUM_SIZE_BYTES: Final = 4
# All that a piece is made of. A note is read from where results are written, so it may name nothing else.
_KNOWN: Final = frozenset(
    (
        "store_core.export.splits.split_task.Piece",
        "store_core.export.splits.count_task.SurveyPiece",
        "store_core.export.tables.tasks.TablePiece",
        "store_core.export.tables.stats.partial_of",
        "store_core.export.dest.parquet.WrittenFile",
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


def task_keys(tasks: Sequence[Task], log: SegmentSequence, what: str = "messages") -> list[str]:
    """For each of some tasks that differ by what they read alone, a fingerprint of all that its outcome depends on: what is
    asked for, and the files that it reads.

    ``what``: is made of them. Changed files are told by length and times, the one that nobody can set included.
    """
    if not tasks:
        return []
    common = digest(
        {
            "what": what,
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
        asked = [task.split] if task.led is None else [task.led, task.split]
        read = [segment for split in asked for segment, _ in segments_of(log, split)]
        for segment in read:
            if segment.phy_offset not in seen:
                seen[segment.phy_offset] = identity_of(segment)
        keys.append(digest([common, *map(asdict, asked), [seen[segment.phy_offset] for segment in read]]))
    return keys


def digest(told: Any) -> str:
    """A fingerprint of what JSON can tell, or dataclasses as dictionaries."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_plain).encode()).hexdigest()[:32]


def plan_fingerprint(keys: Iterable[str]) -> str:
    """A fingerprint of a whole plan from those of its tasks, in order, and of what else it depends on."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]


def note_of(piece: object) -> bytes:
    """A piece as bytes that show whether they are whole."""
    data = pickle.dumps(piece)
    return _HEAD + crc32c(data).to_bytes(_CHECKSUM_SIZE_BYTES, "big") + data


def piece_of(note: bytes, kind: type[Kept]) -> Kept | None:
    """The piece of a note, which is of some kind; None for bytes that are none of that kind."""
    data = note[len(_HEAD) + _CHECKSUM_SIZE_BYTES :]
    checksum = note[len(_HEAD) : len(_HEAD) + _CHECKSUM_SIZE_BYTES]
    if not note.startswith(_HEAD) or checksum != crc32c(data).to_bytes(_CHECKSUM_SIZE_BYTES, "big"):
        return None
    with suppress(Exception):  # whatever else may be wrong with foreign bytes
        found = _Unpickler(io.BytesIO(data)).load()
        return found if type(found) is kind else None
    return None


class _Unpickler(pickle.Unpickler):
    """Makes pieces and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise pickle.UnpicklingError(f"a note names {module}.{name}")
        return super().find_class(module, name)


def identity_of(segment: Segment) -> list[Any]:
    """What tells a file of a sequence from what it may be changed to."""
    return [segment.phy_offset, segment.size_bytes, segment.mtime_ns, *file_identity(segment.path)]


def file_identity(path: Path) -> list[Any]:
    """What tells a file from what it may be changed to: name, length and times, the one that nobody can set included."""
    with suppress(OSError):
        found = path.stat()
        return [path.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    return [path.name]


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    return dict(value)
