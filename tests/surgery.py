"""Applies a recorded surgery case to an unpacked store.

A case is ``{"name", "base", "why", "ops": [...]}``; an op is one of

    write PATH AT HEX            overwrite bytes
    fill PATH AT SIZE BYTE       overwrite SIZE bytes with one value
    xor PATH AT MASK             flip bits of one byte
    truncate PATH SIZE           cut
    extend PATH SIZE             grow with zeros to SIZE
    remove PATH                  a file or a whole folder
    create PATH HEX              a file with these bytes (folders are made)
    mkdir PATH
    copyrange FROM FROM_AT SIZE PATH AT
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

Exit = Literal["clean", "crash"]


def apply_op(root: Path, op: dict[str, Any]) -> None:
    """Carry out one operation under a store root."""
    kind, path = op["op"], root / op.get("path", "")
    if kind == "remove":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif kind == "mkdir":
        path.mkdir(parents=True)
    elif kind == "create":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(op["hex"]))
    elif kind in ("truncate", "extend"):
        with path.open("r+b") as file:
            file.truncate(op["size"])
    else:
        data = _bytes_of(root, path, op)
        with path.open("r+b") as file:
            file.seek(op["at"])
            file.write(data)


def _bytes_of(root: Path, path: Path, op: dict[str, Any]) -> bytes:
    match op["op"]:
        case "write":
            return bytes.fromhex(op["hex"])
        case "fill":
            return bytes([op["byte"]]) * int(op["size"])
        case "xor":
            return bytes([path.read_bytes()[op["at"]] ^ int(op["mask"])])
        case "copyrange":
            start = int(op["from_at"])
            return Path(root, op["from"]).read_bytes()[start : start + int(op["size"])]
        case unknown:
            raise ValueError(unknown)


def set_exit(root: Path, exit_kind: Exit) -> None:
    """``clean`` removes ``abort``, ``crash`` makes sure that it is there."""
    abort = root / "abort"
    if exit_kind == "clean":
        abort.unlink(missing_ok=True)
    elif not abort.exists():
        abort.write_bytes(b"")


def apply_case(root: Path, case: dict[str, Any], exit_kind: Exit) -> None:
    """Damage the store under ``root`` as the case says, and make it look stopped or crashed."""
    for op in case["ops"]:
        apply_op(root, op)
    set_exit(root, exit_kind)
