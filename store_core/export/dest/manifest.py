"""Read and write the manifest of an exported folder: its state, its commits, and all files with their checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store_core.errors import FailedError, UsageError
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.state import FORMAT, Commit, ExportState
from store_core.export.dest.tables import State
from store_core.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest: ``commits`` and ``files`` are JSON objects, oldest first; a file contains its
    commit's number.
    """

    state: ExportState
    commits: tuple[Mapping[str, Any], ...]
    files: tuple[Mapping[str, Any], ...]

    @property
    def paths(self) -> set[str]:
        return {str(file["path"]) for file in self.files}

    def gone(self, objects: Objects) -> list[str]:
        """Return the files that are missing or have another length."""
        sizes = objects.sizes(self.paths)
        return [str(file["path"]) for file in self.files if sizes.get(file["path"]) != file.get("size_bytes")]

    def as_bytes(self) -> bytes:
        """Return JSON in UTF-8."""
        return _as_bytes({**self.state.as_json(), "commits": list(self.commits), "files": list(self.files)})

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Parse a manifest written by ``as_bytes``. Raises FailedError for anything else."""
        try:
            document = json.loads(data)
            state = ExportState.from_json(document, where)
            return cls(
                state, tuple(document["commits"]), tuple({**file, "path": file["path"]} for file in document["files"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise unreadable(where) from error


def manifest_after(last: Manifest | None, parts: Sequence[WrittenFile], commit: Commit, state: State) -> bytes:
    """Return the manifest of a folder after a commit; ``last`` is the manifest that the commit adds to."""
    if isinstance(state, ExportState):
        return _added(last, parts, commit, state).as_bytes()
    return _as_bytes({**state.as_json(), "files": [part.as_json() for part in parts]})


def paths_of(manifest: bytes, where: str) -> set[str]:
    """Return the files of a manifest. Raises FailedError for anything else."""
    try:
        return {str(file["path"]) for file in json.loads(manifest)["files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(where) from error


def refuse_foreign(manifest: bytes, where: str) -> None:
    """Raise UsageError for bytes that are no manifest of an export: other programs have files of this name too."""
    if not is_of_export(manifest):
        raise UsageError(
            "what is there cannot be read as the manifest of an export",
            path=where,
            to_do="name a new or an empty folder",
        )


def is_of_export(manifest: bytes) -> bool:
    """Return True if the bytes are the manifest of an export."""
    try:
        return bool(json.loads(manifest)["format"] == FORMAT)
    except (ValueError, KeyError, TypeError):
        return False


def unreadable(where: str) -> FailedError:
    return FailedError("the manifest cannot be read", path=where, to_do="export again with --overwrite")


def _as_bytes(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def _added(last: Manifest | None, parts: Sequence[WrittenFile], commit: Commit, state: ExportState) -> Manifest:
    """Return the manifest after a commit has added parts."""
    added = tuple({**part.as_json(), "commit": commit.number} for part in parts)
    return Manifest(
        state,
        (*(last.commits if last is not None else ()), commit.as_json()),
        (*(last.files if last is not None else ()), *added),
    )


def id_of(data: bytes | None) -> str | None:
    """Return the fingerprint of a manifest's last commit; None without one, or for another kind of file."""
    try:
        found = json.loads(data).get("id") if data is not None else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
