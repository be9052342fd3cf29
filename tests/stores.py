"""The golden stores and the truth about them (tests/data/README.md). Everything here only reads tests/data."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent / "data"

# Every golden store; the parts say what a test may want to leave out.
CLEAN: Final = ("clean-430", "clean-497", "clean-514", "clean-533", "clean-540", "clean-550", "clean-551")
KILLED: Final = ("crash-497", "crash-533", "crash-540", "crash-551", "crash-551-aged", "pool-533")
SPECIAL: Final = (
    "bcq-533",
    "compact-533",
    "cqext-497",
    "cqext-533",
    "ipv6-533",
    "lite-551",
    "lmq-497",
    "lmq-533",
    "lmq-551",
    "propcrc-533",
)
BASES: Final = ("load-497", "load-533")
BASES_OF_55: Final = ("load-551", "load-551-aged")  # the same load and cases; what differs are crash starts
# Bases of reduced cases of random damage, and the releases besides their writers' that were given them.
MULTIDAMAGE: Final = {"load-497": (), "load-533": ("5.1.4", "5.4.0"), "bcq-533": ("5.1.4",)}
WITHOUT_QUEUE_FILES: Final = ("rocks-533", "rocks-551")
WITH_QUEUE_FILES: Final = (*CLEAN, *KILLED, *SPECIAL, *BASES, *BASES_OF_55)
GOLDEN: Final = (*WITH_QUEUE_FILES, *WITHOUT_QUEUE_FILES)


def _load(name: str) -> Any:
    path = DATA / name
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


@cache
def truth(name: str) -> dict[str, Any]:
    """What the real store code says about a golden store. Shared and cached: never change it."""
    loaded: dict[str, Any] = _load(f"{name}.truth.json.gz")
    return loaded


@cache
def cases(base: str) -> dict[str, dict[str, Any]]:
    """Surgery and filler cases of a base store, by name."""
    parts = [DATA / f"{base}.cases.json", DATA / f"{base}.filler-cases.json"]
    return {case["name"]: case for part in parts if part.exists() for case in _load(part.name)["cases"]}


@cache
def outcomes(base: str, by: str | None = None) -> dict[str, dict[str, Any]]:
    """``CASE/clean`` and ``CASE/crash`` -> what a real broker made of it; ``by`` another release than the base's writer.

    Filler cases were only given to the base's own release.
    """
    parts = (
        [f"{base}.outcomes.json.gz", f"{base}.filler-outcomes.json.gz"]
        if by is None
        else [f"{base}.outcomes-by-{by}.json.gz"]
    )
    return {key: outcome for p in parts if (DATA / p).exists() for key, outcome in _load(p)["outcomes"].items()}


def extra_truth(name: str) -> Any:
    """One of the loose files: ``cross``, ``conf``, ``propcrc``, ``pulls``, ``lock``."""
    return _load(f"{name}.json")


@cache
def config_type_cases() -> dict[str, Any]:
    """What releases made of pairs of config files: ``texts``, and ``cases`` that name two of them by number."""
    found: dict[str, Any] = _load("config-types.json.gz")
    return found


def config_values() -> dict[str, Any]:
    """Which odd values of config members each release's JSON library refuses: ``releases`` and ``members``."""
    found: dict[str, Any] = _load("config-values.json.gz")
    return found


def properties_text(name: str) -> str:
    """The broker's own properties of a golden store, as a properties file; without paths and addresses."""
    return "".join(f"{key}={value}\n" for key, value in sorted(truth(name)["properties"].items()))


def unpack(name: str, root: Path) -> Path:
    """Unpack a golden store so that ``root`` is its store root; modification times are kept."""
    root.mkdir(parents=True)
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "fully_trusted_filter"):  # Python before 3.11.4 has none, and trusts
            archive.extraction_filter = tarfile.fully_trusted_filter
        archive.extractall(root)
    return root


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store root with its modification times, to the nanosecond, of files and folders."""
    shutil.copytree(source, target, copy_function=shutil.copy2, symlinks=True)
    return target


@dataclass(frozen=True, slots=True)
class Entry:
    """What must not change about a file or folder; a folder has no digest."""

    size_bytes: int
    modified_ns: int
    sha256: str


def snapshot(root: Path) -> dict[str, Entry]:
    """Every file and folder below ``root``, by relative path."""
    found = {}
    for folder, _, files in os.walk(root):
        here = Path(folder)
        found[here.relative_to(root).as_posix()] = Entry(0, here.stat().st_mtime_ns, "")
        for file in files:
            path = here / file
            stat = path.lstat()
            if path.is_symlink():
                found[path.relative_to(root).as_posix()] = Entry(0, stat.st_mtime_ns, f"-> {os.readlink(path)}")
                continue
            if not path.is_file():  # a pipe or a device: opening it could wait for ever
                found[path.relative_to(root).as_posix()] = Entry(0, stat.st_mtime_ns, "no plain file")
                continue
            found[path.relative_to(root).as_posix()] = Entry(stat.st_size, stat.st_mtime_ns, sha256(path))
    return found


def has_been_changed(root: Path) -> bool:
    """Whether a plan was applied to the store and has not been undone."""
    from store_core.recovery.apply.undo import list_undo

    return (root / ".rmqctl").is_dir() and any(change.state == "done" for change in list_undo(root))


def faults(root: Path, config: Path) -> list[str]:
    """Findings of severity warning or error that a check of the whole store gives, but for segments that nothing brings back."""
    from store_core.check.store import check_store
    from store_core.storage.settings import load_settings
    from store_core.storage.store import Store

    with Store.open(root, load_settings(config, root)) as store:
        found = check_store(store).findings
    return [f"{f.code} {f.message} {f.topic} {f.queue_id}" for f in found if f.severity != "info" and f.code != "L026"]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents(root: Path) -> dict[str, list[Any]]:
    """Path -> [size, SHA-256] of every file, in the form of ``truth["files"]``."""
    return {path: [e.size_bytes, e.sha256] for path, e in snapshot(root).items() if e.sha256}
