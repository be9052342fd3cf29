"""What a plan may say, how it is written down, and what is refused."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, UsageError
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Content, Op, Plan, Step, Zeros
from store_core.recovery.plans.plan_json import load_plan, plan_from_bytes, plan_to_bytes, save_plan
from store_core.storage.digest import digest_of
from store_core.storage.syscalls import FileOps
from tests.recovery.sample import make_plan, make_tree


def test_contents_read_the_same_in_any_pieces() -> None:
    content = Content((b"head", Zeros(10), b"", b"tail", Zeros(3)))
    whole = b"head" + bytes(10) + b"tail" + bytes(3)
    assert content.size_bytes == len(whole)
    assert b"".join(run if isinstance(run, bytes) else bytes(run.size_bytes) for run in content.runs()) == whole
    assert content.digest() == digest_of([whole])
    for start in range(len(whole) + 2):
        for size in range(len(whole) + 2):
            assert content.read(start, size) == whole[start : start + size]


WRITE = Step(Op.WRITE_RANGE, "a", 0, 4, 0, 10, Content((b"1234",)))
CUT = Step(Op.SET_LENGTH, "a", None, 3, 0, 10)


@pytest.mark.parametrize(
    "steps",
    [
        (WRITE, replace(WRITE, offset=3)),
        (WRITE, CUT),
        (CUT, CUT),
        (WRITE, Step(Op.REMOVE_FILE, "a", expect_crc32c=0, expect_file_size_bytes=10)),
        (WRITE, replace(WRITE, offset=8, expect_file_size_bytes=11)),
        (Step(Op.CREATE_FILE, "a", size_bytes=0, content=Content(())),) * 2,
    ],
)
def test_plans_that_contradict_themselves_cannot_be_made(steps: tuple[Step, ...]) -> None:
    with pytest.raises(ValueError, match=r"^a: "):
        Plan("recover", None, "/store", steps)


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../a"},
        {"path": "a/../b"},
        {"path": ""},
        {"path": ".rmqctl/undo/x"},
        {"path": "lock"},
        {"path": "a//b"},
        {"offset": -1},
        {"offset": None},
        {"size_bytes": 5},
        {"content": None},
        {"expect_crc32c": None},
        {"expect_file_size_bytes": None},
        {"op": Op.ZERO_RANGE},
    ],
)
def test_steps_that_make_no_sense_cannot_be_made(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=": "):
        replace(WRITE, **change)


def test_the_id_says_what_the_plan_does(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    plan = make_plan(root)
    assert plan.id == make_plan(root).id
    assert len(plan.id) == 16
    assert plan.id != replace(plan, policy="broker").id
    assert plan.summary()["steps"][0] == {
        "op": "write range",
        "path": "commitlog/00000000000000000000",
        "offset": 100,
        "size_bytes": 315,
        "expect_crc32c": plan.steps[0].expect_crc32c,
    }


def damaged_plans(whole: dict[str, Any]) -> list[bytes]:
    """A plan file with one thing of it changed."""

    def changed(**words: Any) -> bytes:
        return json.dumps({**whole, **words}).encode()

    step = whole["steps"][0]
    piece = step["content"]["pieces"][0]
    bomb = {**piece, "size_bytes": 5}
    return [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        json.dumps(whole).encode()[:-5],
        changed(id="0" * 16),
        changed(policy="broker"),
        changed(policy=7),
        changed(format="other"),
        changed(steps=[{**step, "op": "burn"}]),
        changed(steps=[{**step, "path": "../../etc/passwd"}]),
        changed(steps=[{**step, "offset": "100"}]),
        changed(steps=[{**step, "offset": 101}, *whole["steps"][1:]]),
        changed(steps=[{**step, "content": {"pieces": [bomb]}}]),
        changed(steps=[{**step, "content": {"pieces": [{**piece, "zlib": "AAAA"}]}}]),
        changed(steps=[{**step, "content": {"pieces": [{**piece, "zlib": "not base64"}]}}]),
        changed(steps=[{**step, "content": {"pieces": [{"zeros": -1}]}}]),
        changed(steps=3),
    ]


def test_a_plan_file_that_was_touched_is_refused(tmp_path: Path) -> None:
    whole = json.loads(plan_to_bytes(make_plan(make_tree(tmp_path / "store"))))
    assert plan_from_bytes(json.dumps(whole).encode(), "plan.json").id == whole["id"]
    for data in damaged_plans(whole):
        (tmp_path / "plan.json").write_bytes(data)
        with pytest.raises(UsageError, match="plan"):
            load_plan(tmp_path / "plan.json")


def test_files_that_cannot_be_read_or_written_are_told(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "store")
    with pytest.raises(FailedError, match="No such file"):
        Draft(root).remove_file("commitlog/00000000000099999999")
    with pytest.raises(UsageError, match="No such file"):
        load_plan(tmp_path / "nowhere.json")
    with pytest.raises(FailedError, match="cannot save"):
        save_plan(make_plan(root), tmp_path / "nowhere/plan.json")


def test_what_was_asked_for_is_named_where_all_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(make_tree(tmp_path / "store"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only", str(tmp_path / "aside"))

    monkeypatch.setattr(FileOps, "create", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FailedError, match=r"plan\.json\): name a folder that may be written to$"):
        save_plan(plan, tmp_path / "plan.json")
