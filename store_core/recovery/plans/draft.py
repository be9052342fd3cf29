"""Make a plan: add each step with the digest of the bytes that the store has there now."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.layout import paths
from store_core.layout.paths import LOCK, OURS
from store_core.recovery.plans.plan import ABSENT, Built, Content, Op, Piece, Plan, Step, Witness
from store_core.storage.digest import Digest, digest_file, digest_range
from store_core.storage.failure import failed
from store_core.storage.write_scope import Places

_IN_ROOT: Final = (
    *(paths.COMMITLOG, *paths.QUEUE_TREES, paths.INDEX, paths.CONFIG),
    *(paths.CHECKPOINT, paths.ABORT, paths.TIMERWHEEL, paths.TIMERLOG),
)


class Draft:
    """Collects steps for a store, which is only read.

    Paths are real or relative to the root; those in a log folder outside the root need that folder in ``writable_roots``.

    Raises (all methods):
        FailedError: a file cannot be read.
        UsageError: the path may not be written to.
        ValueError: the step is not valid.
    """

    def __init__(self, root: Path | str, *, writable_roots: Sequence[Path | str] = ()) -> None:
        self.places = Places(root, writable_roots)
        self._steps: list[Step] = []
        self._witnesses: list[Witness] = []

    def __len__(self) -> int:
        return len(self._steps)

    def write_range(
        self, path: Path | str, offset: int, *pieces: Piece, built: Built | None = None, why: str = ""
    ) -> None:
        """Write bytes, literal or built, at an offset of a file, which grows if they end after its end."""
        content = built or Content(pieces)
        self._add_range(Op.WRITE_RANGE, path, offset, content.size_bytes or 0, content, why)

    def zero_range(self, path: Path | str, offset: int, size_bytes: int, *, why: str = "") -> None:
        """Write zeros into a range of a file."""
        self._add_range(Op.ZERO_RANGE, path, offset, size_bytes, None, why)

    def set_length(self, path: Path | str, size_bytes: int, *, why: str = "") -> None:
        """Cut a file, or extend it by zeros."""
        name, length_now = self._length_now(path)
        with _reading():
            cut = digest_range(self.places.resolve(name), size_bytes, max(0, length_now - size_bytes))
        self._steps.append(Step(Op.SET_LENGTH, name, None, size_bytes, cut.crc32c, length_now, why=why))

    def replace_file(
        self, path: Path | str, *pieces: Piece, built: Built | None = None, mtime_ns: int | None = None, why: str = ""
    ) -> None:
        """Replace a file by a new one, which gets the mode and owner of the old one."""
        name, found = self._name_and_digest(path)
        content = built or Content(pieces)
        self._steps.append(
            Step(
                Op.REPLACE_FILE,
                name,
                size_bytes=content.size_bytes,
                expect_crc32c=found.crc32c,
                expect_file_size_bytes=found.size_bytes,
                content=content,
                mtime_ns=mtime_ns,
                why=why,
            )
        )

    def create_file(
        self, path: Path | str, *pieces: Piece, built: Built | None = None, mtime_ns: int | None = None, why: str = ""
    ) -> None:
        """Create a file that does not exist, and its missing parent folders."""
        name = self._writable(path)
        self._refuse_blocked_folder(name)
        content = built or Content(pieces)
        self._steps.append(
            Step(Op.CREATE_FILE, name, size_bytes=content.size_bytes, content=content, mtime_ns=mtime_ns, why=why)
        )

    def write_file(
        self, path: Path | str, *pieces: Piece, built: Built | None = None, mtime_ns: int | None = None, why: str = ""
    ) -> None:
        """Replace the file if there is one, else create it."""
        make = self.replace_file if os.path.lexists(self.places.resolve(self._writable(path))) else self.create_file
        make(path, *pieces, built=built, mtime_ns=mtime_ns, why=why)

    def remove_file(self, path: Path | str, *, why: str = "") -> None:
        name, found = self._name_and_digest(path)
        self._steps.append(
            Step(Op.REMOVE_FILE, name, expect_crc32c=found.crc32c, expect_file_size_bytes=found.size_bytes, why=why)
        )

    def remove_folder(self, path: Path | str, *, why: str = "") -> None:
        """Remove a folder that is empty once the steps before are done."""
        self._steps.append(Step(Op.REMOVE_FOLDER, self._writable(path), why=why))

    def depend_on(self, path: Path | str) -> None:
        """Make the plan valid only while this unchanged file keeps its length and modification time."""
        name = self.places.name(path)
        with _reading():
            info = os.stat(self.places.root / name)
        self._witnesses.append(Witness(name, info.st_size, info.st_mtime_ns))

    def depend_on_the_rest(self, *folders: Path) -> None:
        """Make the plan valid only while every file and folder that no step changes, also in ``folders``, stays the same."""
        changed = {step.path for step in self._steps}
        known = {witness.path for witness in self._witnesses}
        for top in (self.places.root, *folders):
            for path, inner, names in os.walk(top):
                inner[:] = [name for name in inner if name != OURS]
                for found in (path, *(os.path.join(path, name) for name in names if name != LOCK)):
                    name = self.places.name(found)
                    if name and name not in changed and name not in known and os.path.exists(found):
                        known.add(name)
                        self.depend_on(found)
        # A new file changes its folder's time; the root's time changes with `.rmqctl` too, so names there must stay absent.
        absent = [name for name in _IN_ROOT if not os.path.lexists(self.places.root / name) and name not in changed]
        self._witnesses += (Witness(name, ABSENT, 0) for name in absent)

    def plan(self, kind: str, policy: str | None = None) -> Plan:
        """Return the steps so far as a plan."""
        return Plan(kind, policy, str(self.places.root), tuple(self._steps), tuple(self._witnesses))

    def _add_range(
        self, op: Op, path: Path | str, offset: int, size_bytes: int, content: Content | Built | None, why: str
    ) -> None:
        name, length_now = self._length_now(path)
        with _reading():
            found = digest_range(self.places.resolve(name), offset, size_bytes)
        self._steps.append(Step(op, name, offset, size_bytes, found.crc32c, length_now, content, why=why))

    def _name_and_digest(self, path: Path | str) -> tuple[str, Digest]:
        name = self._writable(path)
        with _reading():
            return name, digest_file(self.places.resolve(name))

    def _refuse_blocked_folder(self, name: str) -> None:
        """Raise FailedError if a needed parent folder's name is that of another file, which may be the operator's."""
        for folder in self.places.resolve(name).parents:
            if folder.is_dir():
                return
            if os.path.lexists(folder):
                to_do = "move it out of the store, and run the command again"
                raise FailedError(
                    "something that is no folder stands where one is needed", path=str(folder), to_do=to_do
                )

    def _length_now(self, path: Path | str) -> tuple[str, int]:
        name = self._writable(path)
        with _reading():
            return name, os.stat(self.places.resolve(name), follow_symlinks=False).st_size

    def _writable(self, path: Path | str) -> str:
        name = self.places.name(path)
        self.places.resolve(name)
        return name


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed(error, "cannot read what the plan would change") from error
