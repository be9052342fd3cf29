"""Start rmqctl from a zipapp: unpack it once into a folder of the user's own, for compiled libraries cannot be imported from a zip file.

The folder is ``rmqctl/zipapp-ID`` in ``$XDG_CACHE_HOME`` or ``~/.cache``, readable by its user alone. Where that cannot be
written, a folder in the system's temporary one serves, and is removed at the end. ID is made of the contents: a folder that
is complete is never written again.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

PYTHON = "@PYTHON@"
ID = "@ID@"
PACKED = "packed/"


def unpacked() -> Path:
    """Return the folder with the unpacked libraries. Unpack them where this has not been done."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "rmqctl"
    folder = cache / f"zipapp-{ID}"
    if _is_own(folder):
        return folder
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = _filled(cache)
    except OSError:
        part = _filled(None)
        atexit.register(shutil.rmtree, part, ignore_errors=True)
        return part
    try:
        part.rename(folder)
    except OSError:  # another process was quicker, or something else has that name
        if not _is_own(folder):
            atexit.register(shutil.rmtree, part, ignore_errors=True)
            return part
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _is_own(folder: Path) -> bool:
    """Return True if nobody but this user can have filled the folder."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _filled(parent: Path | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"zipapp-{ID}.", dir=parent))  # for this user alone
    try:
        with zipfile.ZipFile(sys.argv[0]) as archive:
            names = [name for name in archive.namelist() if name.startswith(PACKED)]
            archive.extractall(folder, names)
        for path in (folder / PACKED).iterdir():
            path.rename(folder / path.name)
        (folder / PACKED).rmdir()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def main() -> int:
    """Run the program and return its exit code."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here != PYTHON:
        sys.stderr.write(
            f"error: this file is for Python {PYTHON}, not {here}: run it as python{PYTHON} {sys.argv[0]}, or build one with `make zipapp PYTHON=python{here}`\n"
        )
        return 1
    try:
        sys.path.insert(0, str(unpacked()))
    except OSError as error:
        sys.stderr.write(f"error: cannot unpack {sys.argv[0]}: {error}: name a folder with room with XDG_CACHE_HOME\n")
        return 1
    from rmqctl.app import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
