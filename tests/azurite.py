"""Azurite, Microsoft's emulator of Azure's storage, through npm. Kept from run to run beside the jars of tests/broker/jars.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.broker.jars import cache, locked, trouble_of

_VERSION: Final = "3.35.0"
# What Azurite's documentation tells everybody: no secret.
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class NoAzuriteError(Exception):
    """This machine has no Node.js with npm, or npm gets nothing."""


def command(port: int) -> list[str]:
    """What starts it on a loopback port, with nothing in it. Raises NoAzuriteError."""
    if missing := [tool for tool in ("node", "npm") if shutil.which(tool) is None]:
        raise NoAzuriteError(f"Azure's emulator needs Node.js and npm; not on PATH: {', '.join(missing)}")
    program = _fetched() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    words = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    return ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), *words]


def _fetched() -> Path:
    folder = cache() / f"azurite-{_VERSION}"
    with locked(folder):
        if not (folder / "complete").exists():
            _fetch(folder)
            (folder / "complete").touch()
    return folder


def _fetch(folder: Path) -> None:
    words = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        str(folder),
        f"azurite@{_VERSION}",
    ]
    if said := trouble_of(words, folder, folder / "node_modules"):
        raise NoAzuriteError(f"npm cannot get Azurite {_VERSION}: {said}")
