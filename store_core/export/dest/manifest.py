"""The manifest of an exported folder: the state of the export, its commits, and all files with their checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store_core.errors import FailedError
from store_core.export.dest.parts import Part
from store_core.export.dest.state import Commit, ExportState


@dataclass(frozen=True, slots=True)
class Manifest:
    """``commits`` and ``files`` as JSON objects, oldest first; a file tells the number of its commit."""

    state: ExportState
    commits: tuple[Mapping[str, Any], ...]
    files: tuple[Mapping[str, Any], ...]

    @property
    def paths(self) -> set[str]:
        return {str(file["path"]) for file in self.files}

    def as_bytes(self) -> bytes:
        """JSON, UTF-8."""
        document = {**self.state.as_json(), "commits": list(self.commits), "files": list(self.files)}
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """The manifest as ``as_bytes`` gave it. Raises FailedError for anything else."""
        try:
            told = json.loads(data)
            state = ExportState.from_json(told, where)
            return cls(state, tuple(told["commits"]), tuple({**file, "path": file["path"]} for file in told["files"]))
        except (ValueError, KeyError, TypeError) as error:
            raise FailedError(
                "the manifest cannot be read", path=where, to_do="export anew, with --overwrite"
            ) from error


def manifest_after(last: Manifest | None, parts: Sequence[Part], commit: Commit, state: ExportState) -> Manifest:
    """The manifest once a commit has added parts."""
    added = tuple({**part.as_json(), "commit": commit.number} for part in parts)
    return Manifest(
        state,
        (*(last.commits if last is not None else ()), commit.as_json()),
        (*(last.files if last is not None else ()), *added),
    )


def id_of(data: bytes | None) -> str | None:
    """The fingerprint of the last commit of a manifest; None where there is none, or it is of another kind."""
    try:
        found = json.loads(data).get("id") if data is not None else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
