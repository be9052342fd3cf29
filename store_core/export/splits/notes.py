"""Write and read notes about finished splits, so that a rerun can recognise and reuse them."""

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
# All classes that a piece contains. Others may write to the destination of notes, so a note may name no other class.
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
    """Return a fingerprint for each task of its request and the files that it reads.

    The outcome depends on nothing else. The tasks differ only in their ranges; ``what`` names the kind of result.
    Changed files are recognised by length and times, including the change time, which no program can set.
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
    identities: dict[int, list[Any]] = {}  # by offset: several splits share a segment
    keys: list[str] = []
    for task in tasks:
        ranges = [task.split] if task.led is None else [task.led, task.split]
        read = [segment for split in ranges for segment, _ in segments_of(log, split)]
        for segment in read:
            if segment.phy_offset not in identities:
                identities[segment.phy_offset] = identity_of(segment)
        keys.append(digest([common, *map(asdict, ranges), [identities[segment.phy_offset] for segment in read]]))
    return keys


def digest(told: Any) -> str:
    """Return a fingerprint of JSON values, or of dataclasses as dictionaries."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_plain).encode()).hexdigest()[:32]


def plan_fingerprint(keys: Iterable[str]) -> str:
    """Return a fingerprint of a whole plan from those of its tasks, in order, and of its other inputs."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]


def note_of(piece: object) -> bytes:
    """Encode a piece as bytes with a checksum."""
    data = pickle.dumps(piece)
    return _HEAD + crc32c(data).to_bytes(_CHECKSUM_SIZE_BYTES, "big") + data


def piece_of(note: bytes, kind: type[Kept]) -> Kept | None:
    """Decode the piece of a note; None for bytes that are damaged or hold another class than ``kind``."""
    data = note[len(_HEAD) + _CHECKSUM_SIZE_BYTES :]
    checksum = note[len(_HEAD) : len(_HEAD) + _CHECKSUM_SIZE_BYTES]
    if not note.startswith(_HEAD) or checksum != crc32c(data).to_bytes(_CHECKSUM_SIZE_BYTES, "big"):
        return None
    with suppress(Exception):  # foreign bytes may raise any error
        found = _Unpickler(io.BytesIO(data)).load()
        return found if type(found) is kind else None
    return None


class _Unpickler(pickle.Unpickler):
    """Loads pieces and refuses every other class."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise pickle.UnpicklingError(f"a note names {module}.{name}")
        return super().find_class(module, name)


def identity_of(segment: Segment) -> list[Any]:
    """Return the values by which a changed file of a sequence is recognised: offset, length and times."""
    return [segment.phy_offset, segment.size_bytes, segment.mtime_ns, *file_identity(segment.path)]


def file_identity(path: Path) -> list[Any]:
    """Return name, length and times of a file; its change time cannot be set by a program."""
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
