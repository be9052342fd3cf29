"""What is no queue among the queues: told, left alone, and in nobody's way unless something has to be made in its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
        "consumequeue/Calm_bills/-2147483649",  # none either
        "consumequeue/Calm_bills/old",  # no number
        "consumequeue/Calm_bills/-7",  # a queue to a broker, for nobody
        "consumequeue/Calm_bills/note.txt",  # a file
    ]
    (tree / "Calm_orders").rename(root / names[0])
    for name in names[1:7]:
        shutil.copytree(tree / "Calm_bills" / "0", root / name)
    (root / names[7]).write_text("?")
    return sorted(names)


def _without_ours(root: Path) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith((paths.OURS, "lock"))}


@pytest.mark.product(1)
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


def _in_place_of(place: str, word: bytes = b"x") -> Callable[[Path], None]:
    def put(root: Path) -> None:
        shutil.rmtree(root / place)
        (root / place).write_bytes(word)

    return put


IN_THE_WAY: Final = {
    f"{_TOPIC}/0": "error",
    _TOPIC: "warning",
    paths.CONSUMEQUEUE: "error",
    paths.INDEX: "error",
    paths.CONFIG: "error",
}


@pytest.mark.product(2)
@pytest.mark.parametrize("place", IN_THE_WAY)
def test_a_file_in_place_of_a_folder_is_told_and_never_removed(place: str, store_copy: StoreCopy) -> None:
    """Nobody knows whose it is. What a command would make in its place it refuses with its real path; nothing is changed."""
    root = store_copy(_NAME, "crash")
    _in_place_of(place)(root)
    before = _without_ours(root)
    assert ("S008", IN_THE_WAY[place], place) in _told(root)
    for words in (("recover",), ("recover", "--policy", "broker"), ("rebuild", "all"), ("truncate", _CUT)):
        result = call(*words, "--apply", "-s", root, "-o", "json")
        assert result.code == 1, (words, result.out)
        assert f"{root / place}" in result.err, (words, result.err)
        assert "move it" in result.err, (words, result.err)
    assert differences(before, _without_ours(root)) == []


@pytest.mark.parametrize("place", [f"{_TOPIC}/0", _TOPIC])
def test_put_says_what_stands_in_its_way(place: str, store_copy: StoreCopy) -> None:
    root = store_copy(_NAME)
    _in_place_of(place)(root)
    result = call("put", "Calm_orders", "body", "--queue-id", 0, "-s", root)
    assert result.code == 1
    assert f"a file stands where a folder is needed ({root / place}): move it out of the way" in result.err


@pytest.mark.leaves_damage("the file is left alone")
def test_a_file_beside_the_topics_is_in_nobodys_way(store_copy: StoreCopy) -> None:
    root = store_copy(_NAME)
    (root / "consumequeue" / "README").write_text("?")
    assert _told(root) == [("S008", "warning", "consumequeue/README")]
    assert call("rebuild", "all", "--apply", "-s", root).code in (0, 3)
    assert (root / "consumequeue" / "README").read_text() == "?"


FILES: Final = (
    paths.CHECKPOINT,
    paths.TOPICS_JSON,
    paths.CONSUMER_OFFSET_JSON,
    f"{_TOPIC}/0/00000000000000000000",
)


@pytest.mark.product(2)
@pytest.mark.leaves_damage("the folder is left alone")
@pytest.mark.parametrize("place", FILES)
def test_a_folder_in_place_of_a_file_is_told(place: str, store_copy: StoreCopy) -> None:
    root = store_copy(_NAME, "crash")
    (root / place).unlink()
    (root / place / "somebodys").mkdir(parents=True)
    found = call("check", "-s", root, "-o", "json").json["findings"]
    assert place in {f["file"] for f in found}
    for words in (("recover",), ("rebuild", "all"), ("truncate", _CUT)):
        result = call(*words, "--apply", "-s", root, "-o", "json")
        assert result.code in (0, 1, 3), (words, result.err)
        if result.code == 1:
            assert f"{root / place}" in result.err, (words, result.err)
            assert "move it" in result.err, (words, result.err)
    assert (root / place / "somebodys").is_dir()
