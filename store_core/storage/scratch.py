"""Make scratch folders, and lay a store out in one as it would be after a change."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from store_core.layout.paths import OURS
from store_core.storage.digest import Hole
from store_core.storage.new_files import create_files


def lay_out_links(
    root: Path,
    folder: Path,
    *,
    new: Mapping[str, Callable[[], Iterator[bytes | Hole]]],
    removed: Collection[str],
    left_out: Collection[str] = (),
) -> Path:
    """Lay the store at ``root`` out in ``folder`` as after a change, with links to unchanged files.

    Returns the shadow's root. Paths are relative to the root: ``new`` files with their content, ``removed`` files and folders,
    and folders ``left_out`` entirely. Nothing of the store is touched. Raises OSError if the scratch folder has no room.
    """
    shadow = folder / "store"
    skipped = {OURS, *left_out}
    touched = {*new, *removed}
    for path, folders, names in os.walk(root, followlinks=True):
        here = os.path.relpath(path, root)
        relative = "" if here == os.curdir else here + "/"
        # A linked folder stays a link if nothing in it changes, also if it leads back up.
        kept = {
            name
            for name in folders
            if os.path.islink(os.path.join(path, name)) and not any(t.startswith(f"{relative}{name}/") for t in touched)
        }
        names += sorted(kept.difference(name for name in folders if relative + name in skipped))
        gone = {name for name in folders if relative + name in skipped or relative + name in removed}
        folders[:] = [name for name in folders if name not in gone and name not in kept]
        os.makedirs(shadow / here, exist_ok=True)
        for name in names:
            if relative + name not in new and relative + name not in removed:
                os.symlink(os.path.join(os.path.abspath(path), name), shadow / here / name)
    create_files(shadow, new)
    return shadow


_SPARE_DESCRIPTORS: Final = 12  # a removal takes two for each level


@contextmanager
def scratch_folder(prefix: str = "rmqctl-") -> Iterator[Path]:
    """Make a folder that is removed on exit, even if the process has no free descriptors then. Raises OSError."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix=prefix))
        for _ in range(_SPARE_DESCRIPTORS):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield Path(folder)
