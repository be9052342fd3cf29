"""Check every path in a journal before it is read or written: an untrusted store can contain a hostile journal."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store_core.errors import FailedError, StoreError, UsageError
from store_core.recovery.apply.execute import Change
from store_core.recovery.apply.prepare import FILE_BITS, folder_like
from store_core.recovery.plans.plan import NEW_FILES, RANGES, Built, Op, Step, is_in_place
from store_core.storage.journal import OUR_FILE_MODE, UNDO_FOLDER, Journal
from store_core.storage.write_scope import Places

_PERMISSIONS: Final = 0o777
_OURS_IN: Final = re.compile(rf"(?:(?P<outside>/.*)/)?{re.escape(UNDO_FOLDER)}/(?P<id>[^/]+)/(?:kept|staged)/\d+")


def assert_named(journal: Journal, places: Places) -> None:
    """Raise UsageError if a change writes to log folders outside the store that the operator has not named in this run."""
    unnamed = _unnamed_roots(journal, places)
    if unnamed:
        options = " ".join(f"--commitlog {root}" for root in unnamed)
        raise UsageError(
            f"{_description(journal)} also writes to {', '.join(unnamed)}, which was not named, and is left as it is",
            path=f"{UNDO_FOLDER}/{journal.id}",
            to_do=f"add {options} if that is this store's log, or give the change up with `rmqctl undo --forget {journal.id}`",
        )


def assert_nothing_kept_outside(journal: Journal, places: Places) -> None:
    """Raise UsageError if bytes are kept next to a log folder that the operator has not named in this run."""
    for root in _unnamed_roots(journal, places):
        kept = Path(root).parent / journal.folder
        if kept.is_dir() and not kept.is_relative_to(places.root):
            raise UsageError("bytes of the change are kept there, too", path=str(kept), to_do=f"add --commitlog {root}")


def assert_trusted(change: Change) -> None:
    """Check that journal and plan name only paths, files and modes that rmqctl itself would have written.

    Raises:
        FailedError, UsageError: one of them differs.
    """
    try:
        _assert_complete(change)
        for path, steps in change.plan.by_path.items():
            _assert_plain(change, path, steps)
        for folder in change.records.folders.values():
            real = change.writer.places.exact(folder.path) if folder.path else change.writer.root
            if os.path.lexists(real) and not real.is_dir():
                raise FailedError("no folder stands there", path=folder.path)
        for path, own_file in _own_files(change):
            _assert_own(change, path, own_file)
    except StoreError as error:
        error.what = (
            f"{_description(change.journal)} names what rmqctl does not write to, and is left as it is: {error.what}"
        )
        error.to_do = f"look at it; `rmqctl undo --forget {change.journal.id}` gives it up and changes nothing else"
        raise


def _unnamed_roots(journal: Journal, places: Places) -> list[str]:
    recorded = journal.last("begin").get("writable_roots", [])
    roots = [str(root) for root in recorded] if isinstance(recorded, list) else [str(recorded)]
    named = (places.root, *places.writable_roots)
    return [root for root in roots if "\0" in root or Path(os.path.realpath(root)) not in named]


def _description(journal: Journal) -> str:
    kind = journal.last("begin").get("kind")
    said = f"the {kind}" if isinstance(kind, str) else "the change"
    return f"{said} {journal.id} ({journal.state})"


def _assert_complete(change: Change) -> None:
    """Raise FailedError unless plan and records have the same paths."""
    records, plan = change.records, change.plan
    if plan.id != change.journal.last("begin").get("plan_id"):
        raise FailedError("the plan beside the journal is another one", path=change.journal.folder)
    ranges = {(step.path, step.offset) for step in plan.steps if _is_staged_range(step)}
    new = {step.path for step in plan.steps if step.op in NEW_FILES}
    removed = {step.path for step in plan.steps if step.op is Op.REMOVE_FOLDER}
    is_complete = (
        records.originals.keys() == plan.by_path.keys()
        and records.new_files.keys() == new
        and records.new_ranges.keys() == ranges
        and removed <= records.folders.keys()
    )
    if not is_complete:
        raise FailedError("the records of files do not fit the plan", path=change.journal.folder)


def _is_staged_range(step: Step) -> bool:
    return step.op in RANGES and isinstance(step.content, Built)


def _assert_plain(change: Change, path: str, steps: tuple[Step, ...]) -> None:
    real = change.writer.places.exact(path)
    original = change.records.originals[path]
    is_kept = steps[0].op not in (Op.CREATE_FILE, Op.REMOVE_FOLDER)
    if (original.kept is not None) != is_kept or original.existed != (steps[0].op is not Op.CREATE_FILE):
        raise FailedError("what is kept of the file does not fit the plan", path=path)
    if is_in_place(steps) and os.path.lexists(real) and not stat.S_ISREG(os.lstat(real).st_mode):
        raise FailedError("no plain file stands there", path=path)


def _own_files(change: Change) -> Iterator[tuple[str, str]]:
    """Yield the path in the store and the name of each kept or staged file in the journal."""
    records = change.records
    for original in records.originals.values():
        if original.kept is not None:
            yield original.path, original.kept
    for new in (*records.new_files.values(), *records.new_ranges.values()):
        yield new.path, new.staged


def _assert_own(change: Change, path: str, name: str) -> None:
    """Raise FailedError unless a kept or staged file meets these conditions:

    * it is in this change's folder
    * it is a plain file, or missing
    * its mode is not wider than that of the store's files there
    """
    found = _OURS_IN.fullmatch(name)
    places = change.writer.places
    areas = {"" if area.parent == places.root else str(area.parent) for area in places.areas}
    if found is None or found["id"] != change.journal.id or (found["outside"] or "") not in areas:
        raise FailedError("bytes are kept or wait elsewhere than rmqctl puts them", path=name)
    real = places.exact(name)
    if not os.path.lexists(real):
        return
    info = os.lstat(real)
    if not stat.S_ISREG(info.st_mode):
        raise FailedError("no plain file stands there", path=name)
    mode = stat.S_IMODE(info.st_mode)
    if mode & ~_PERMISSIONS or ("/staged/" in name and mode & ~_widest_mode(change, path)):
        raise FailedError(f"a file that waits has the mode {mode:o}, which the store's own have not", path=name)


def _widest_mode(change: Change, path: str) -> int:
    """Return the mode bits that a new file may have: those of its folder and of the file that it replaces."""
    bits = OUR_FILE_MODE | (folder_like(change.writer.path(path).parent).mode & FILE_BITS)
    original = change.records.originals[path]
    for name in (path, original.kept or ""):
        if name and os.path.lexists(real := change.writer.path(name)):
            bits |= stat.S_IMODE(os.lstat(real).st_mode) & _PERMISSIONS
    return bits
