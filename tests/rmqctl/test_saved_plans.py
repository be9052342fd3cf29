"""`--save` and `apply`: where a plan may be saved, and for which state of the store it still holds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rmqctl import exit_codes
from store_core.layout import paths
from tests import stores
from tests.conftest import DamagedStore, differences
from tests.rmqctl.calls import call
from tests.rmqctl.test_bad_input import overwrite

_SEGMENT: Final = f"{paths.COMMITLOG}/{paths.segment_name(0)}"


@pytest.fixture
def sample(damaged: DamagedStore) -> Path:
    return damaged("load-533", "flip-body-mid", "crash")


# A place for a plan, from the store's root and a folder outside; what the error says of it.
REFUSED: Final[dict[str, tuple[Callable[[Path, Path], Path], str]]] = {
    "a segment": (lambda root, _: root / _SEGMENT, "inside the store"),
    "a new file in the root": (lambda root, _: root / "plan.json", "inside the store"),
    "a new file in .rmqctl": (lambda root, _: root / paths.OURS / "plan.json", "inside the store"),
    "a link to a segment": (lambda root, other: linked(other / "plan.json", root / _SEGMENT), "inside the store"),
    "a linked folder": (lambda root, other: linked(other / "in", root / paths.CONFIG) / "plan.json", "inside the store"),
    "a way around": (lambda root, other: other / ".." / root.name / paths.INDEX / "plan.json", "inside the store"),
    "a file of one's own": (lambda _, other: written(other / "notes.txt"), "a file that is no plan"),
    "a link to a file of one's own": (lambda _, other: linked(other / "p", written(other / "notes.txt")), "a file that is no plan"),
    "a folder": (lambda _, other: other, "not a plain file"),
    "a missing folder": (lambda _, other: other / "missing" / "plan.json", "no place for a plan"),
}  # fmt: skip


def linked(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def written(path: Path) -> Path:
    path.write_text("shopping list")
    return path


@pytest.mark.product(4)
@pytest.mark.parametrize("place", REFUSED)
def test_no_file_but_a_plan_is_written_over(place: str, sample: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (sample / paths.OURS).mkdir()
    where, said = REFUSED[place]
    path = where(sample, other)
    before = stores.snapshot(tmp_path)
    for words in (("truncate", "567104"), ("recover", "--apply")):
        result = call(*words, "--save", path, "-s", sample, "-o", "json")
        assert (result.code, result.json["error"]["code"]) == (exit_codes.USAGE, "usage"), result.err
        assert said in result.err
        assert str(path) in result.err
    assert differences(before, stores.snapshot(tmp_path)) == []


def test_a_plan_takes_the_place_of_an_older_plan(sample: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    for words in (("recover",), ("truncate", "567104")):
        saved = call(*words, "--save", plan, "-s", sample, "-o", "json")
        assert saved.code == exit_codes.FINDINGS
    done = call("apply", plan, "-s", sample, "-o", "json")
    assert done.json["plan"] == saved.json["plan"]


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" ")


# Changes of the store that no step of the plan speaks of.
UNRELATED: Final[dict[str, Callable[[Path], object]]] = {
    "a file grows": lambda root: append(root / paths.TOPICS_JSON),
    "a byte of another segment": lambda root: overwrite(root / _SEGMENT, 100, b"\1"),
    "a new file": lambda root: (root / paths.CONFIG / "new.json").write_text("{}"),
    "a file goes": lambda root: (root / paths.DELAY_OFFSET_JSON).unlink(),
    "a new topic": lambda root: (root / paths.CONSUMEQUEUE / "New").mkdir(),
    "only a time": lambda root: os.utime(root / _SEGMENT, ns=(1, 1)),
}


@pytest.mark.parametrize("change", UNRELATED)
def test_a_plan_holds_for_no_other_state_of_the_store(change: str, sample: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    saved = call("recover", "--save", plan, "-s", sample, "-o", "json").json["plan"]
    UNRELATED[change](sample)
    before = stores.snapshot(sample)
    refused = call("apply", plan, "-s", sample, "-o", "json")
    assert (refused.code, refused.json["error"]["code"]) == (exit_codes.OUT_OF_DATE, "out_of_date"), saved
    assert "changed since the plan was made" in refused.err
    assert differences(before, stores.snapshot(sample)) == []


def test_reading_leaves_a_plan_as_good_as_it_was(sample: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    saved = call("recover", "--save", plan, "-s", sample, "-o", "json").json["plan"]
    for words in (("check",), ("info",), ("recover",), ("undo", "--list")):
        call(*words, "-s", sample, "-o", "json")
    done = call("apply", plan, "-s", sample, "-o", "json")
    assert (done.code, done.json["plan"], done.json["applied"]) == (exit_codes.OK, saved, True)


@pytest.mark.parametrize("words", [("recover",), ("truncate", 567104)], ids=lambda words: words[0])
def test_apply_tells_what_was_planned(words: tuple[object, ...], sample: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    told = call(*words, "-s", sample, "-o", "json", "--save", plan).json
    done = call("apply", plan, "-s", sample, "-o", "json").json
    verdict = ["verdict"] if words[0] == "recover" else []
    assert list(done) == ["store", "plan", "after", "lost", "findings", "applied", "undo_id", *verdict]
    assert {key: done[key] for key in ("plan", "after", "lost")} == {
        key: told[key] for key in ("plan", "after", "lost")
    }
    assert (done["applied"], done["lost"] != []) == (True, True)


def test_apply_ends_with_the_verdict_of_recover(sample: Path, tmp_path: Path) -> None:
    other, plan = tmp_path / "other", tmp_path / "plan.json"
    shutil.copytree(sample, other)
    call("recover", "--save", plan, "-s", sample, "-q")
    said = [call(*words, "-q") for words in (("apply", plan), ("recover", "--apply", "-s", other))]
    ends = [result.out.partition("\nVerdict: ")[2] for result in said]
    assert ends[0].startswith("green\n")
    assert ends[0] == ends[1].replace(str(other), str(sample))


@pytest.mark.parametrize("prospect", [7, [], {}, {"starts": "yes"}])
def test_a_prospect_that_is_none_gives_no_verdict(prospect: object, sample: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    call("recover", "--save", plan, "-s", sample, "-q")
    saved = json.loads(plan.read_text())
    saved["outlook"]["prospect"] = prospect
    plan.write_text(json.dumps(saved))
    done = call("apply", plan, "-o", "json")
    assert (done.code, "verdict" in done.json) == (exit_codes.OK, False)
