"""What is no queue among the queues: told, left alone, and in nobody's way unless something has to be made in its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from store_core.layout import paths
from tests import stores
from tests.conftest import StoreCopy, differences
from tests.rmqctl.calls import call

_NAME: Final = "load-533"
_TOPIC: Final = "consumequeue/Calm_orders"
_CUT: Final = 393216


def _strays(root: Path) -> list[str]:
    """One of each kind, by name."""
    tree = root / "consumequeue"
    names = [
        os.fsdecode(b"consumequeue/Cal\xff\xfe"),  # bytes that are not UTF-8
        "consumequeue/Calm_bills/007",  # zeros in front
        "consumequeue/Calm_bills/\N{ARABIC-INDIC DIGIT THREE}",  # Java reads 3 off it
        "consumequeue/Calm_bills/2147483648",  # no Java int
        "consumequeue/Calm_bills/old",  # no number
        "consumequeue/Calm_bills/note.txt",  # a file
    ]
    (tree / "Calm_orders").rename(root / names[0])
    for name in names[1:5]:
        shutil.copytree(tree / "Calm_bills" / "0", root / name)
    (root / names[5]).write_text("?")
    return sorted(names)


def _without_ours(root: Path) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith((paths.OURS, "lock"))}


@pytest.mark.parametrize("words", ["recover", "rebuild all", f"truncate {_CUT}"])
def test_strays_are_told_and_left_alone_and_all_else_is_mended(words: str, store_copy: StoreCopy) -> None:
    root = store_copy(_NAME, "crash")
    strays = _strays(root)
    (root / "consumequeue/Calm_audit/0/00000000000000004000").unlink()
    before = _without_ours(root)
    expected = sorted(("Q019", "warning", _shown(stray)) for stray in strays)
    assert _told(root)[-len(expected) :] == expected
    result = call(*words.split(), "--apply", "-s", root, "-o", "json")
    assert result.code in (0, 3), result.err
    after = _without_ours(root)
    for stray in strays:
        assert _below(after, stray) == _below(before, stray)
    assert _told(root) == expected
    assert (root / _TOPIC / "0").is_dir()
    assert call("undo", "--apply", "-s", root).code == 0
    assert differences(before, _without_ours(root)) == []


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")


def _below(snapshot: dict[str, stores.Entry], name: str) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in snapshot.items() if path == name or path.startswith(name + "/")}


def _told(root: Path) -> list[tuple[str, str, str]]:
    """Layout findings that check tells, what info tells with them, in order."""
    found = call("check", "-s", root, "-o", "json").json["findings"]
    told = [(f["code"], f["severity"], f["file"]) for f in found if f["code"] in ("Q019", "S008", "Q012")]
    document = call("info", "-s", root, "-o", "json").json["stores"][0]
    assert {f["file"] for f in document["findings"]} >= {file for code, _, file in told if code != "Q012"}
    return sorted(told)
