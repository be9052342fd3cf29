"""Pack code for executors in one file: the package's sources, or a whole environment."""

from __future__ import annotations

import hashlib
import io
import os
import re
import sysconfig
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.storage.publish import result_problem
from store_core.storage.writer import save_file

JAVA_ENDS_SECONDS: Final = 3  # Java's time to leave its master and remove its files at the end


@dataclass(frozen=True, slots=True)
class Start:
    """Spark's master (None: spark-submit has it), its settings, a scratch folder, and the executors' environment.

    ``environment`` is a packed archive; None for the executors' own.
    """

    master: str | None
    conf: tuple[tuple[str, str], ...]
    scratch: Path
    environment: Path | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of logs that tasks of this run have walked so far; repeated tasks count twice."""

    walked_bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """The pickled pieces of tasks that finished since the last message, each with its task's number."""

    pieces: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The pickled pieces in the order of the tasks, or the pickled StoreError of the run. ``notes`` are for the
    operator.
    """

    pieces: tuple[bytes, ...] = ()
    error: bytes | None = None
    notes: tuple[str, ...] = ()


ENVIRONMENT: Final = "rmqctl_env"  # an archive's folder in an executor's working directory
DISTRIBUTION: Final = "rmqctl"
_EXTRA: Final = re.compile(r"""extra == ['"]export['"]""")  # without pyarrow no rows reach Spark
_SOURCE: Final = "pyspark_rmqctl.py"
_PACKAGES: Final = ("store_core", "rmqctl")
_LEFT_OUT: Final = re.compile(r"(^|/)(tests?|include|__pycache__)/|\.(pyc|pyi|pxd|pyx|h|hpp|lib|a)$")
_REQUIRED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def packed_sources(folder: Path) -> Path:
    """Write a zip of the library's Python sources and of the Spark source, for ``--py-files``. Raises FailedError."""
    path = folder / "store_core.zip"
    save_sources(path)
    return path


def save_sources(path: Path) -> None:
    """Write the zip of ``packed_sources``; it has the kernel's Python twin only. Raises FailedError."""
    root = _root()
    data = io.BytesIO()
    with zipfile.ZipFile(data, mode="w", compression=zipfile.ZIP_DEFLATED) as archive:
        for file in [root / _SOURCE, *sorted((root / "store_core").rglob("*.py"))]:
            archive.write(file, file.relative_to(root))
    with result_problem("writing the sources", path):
        save_file(path, data.getvalue())


def packed_environment() -> Path:
    """Return an archive of the environment, from the user's cache or new. Raises FailedError where it cannot be
    written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmqctl"
    files = list(_files())
    path = cache / f"environment-{_key(files)}.tar.gz"
    if not path.exists():
        save_environment(path, files)
    return path


def save_environment(path: Path, files: list[tuple[str, Path]] | None = None) -> None:
    """Write an archive of rmqctl, its compiled kernel and every package it needs, for this platform and Python.

    The archive fits this Python's minor release. Raises FailedError.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(part, "w:gz", compresslevel=1) as archive:
                for name, file in files or _files():
                    archive.add(file, name)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FailedError(f"the environment cannot be packed: {error.strerror}", path=str(path)) from error


def _root() -> Path:
    return Path(__file__).resolve().parents[3]


def _key(files: list[tuple[str, Path]]) -> str:
    """Return a digest that changes with the content of the archive."""
    digest = hashlib.sha256(f"{sysconfig.get_platform()} {sysconfig.get_python_version()}".encode())
    for name, file in files:
        info = file.stat()
        digest.update(f"\n{name} {info.st_size} {info.st_mtime_ns}".encode())
    return digest.hexdigest()[:20]


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the names in the archive with their files."""
    root = _root()
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            yield str(file.relative_to(root)), file
    for file in sorted((root / "store_core" / "kernel").glob("_native.*.so")):
        yield str(file.relative_to(root)), file
    yield _SOURCE, root / _SOURCE
    for distribution in _needed(DISTRIBUTION):
        for listed in distribution.files or ():
            file = Path(str(distribution.locate_file(listed)))
            name = listed.as_posix()
            if not name.startswith(("..", "/")) and not _LEFT_OUT.search(name) and file.is_file():
                yield name, file


def _needed(name: str) -> list[metadata.Distribution]:
    """Return the installed distributions that ``name`` requires, directly or not, with no extra but ``export``.

    Raises FailedError if it is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    try:
        waiting = _requirements(name)
    except metadata.PackageNotFoundError as error:  # the driver runs from an archive or a folder of sources
        raise FailedError(
            f"the environment cannot be packed where {name} is not installed",
            to_do="leave --pack-env out if spark-submit sends an archive with --archives, else install rmqctl",
        ) from error
    while waiting:
        wanted = waiting.pop()
        if wanted not in found:
            try:
                found[wanted] = metadata.distribution(wanted)
            except metadata.PackageNotFoundError:  # for another platform
                continue
            waiting += _requirements(wanted)
    return [found[wanted] for wanted in sorted(found)]


def _requirements(name: str) -> list[str]:
    lines = [line for line in metadata.requires(name) or () if "extra ==" not in line or _wanted(name, line)]
    matches = [_REQUIRED.match(line) for line in lines]
    return [match[0].lower().replace("_", "-") for match in matches if match]


def _wanted(name: str, line: str) -> bool:
    return name == DISTRIBUTION and _EXTRA.search(line) is not None
