"""A store from a stranger: whatever its journal, plan and links say, nothing outside the named roots is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, StoreError, UsageError
from store_core.layout import paths
from store_core.recovery.apply.apply import apply
from store_core.recovery.apply.undo import forget, list_undo, undo
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Content, Plan, Zeros
from store_core.recovery.plans.plan_json import load_plan, plan_from_bytes, plan_to_bytes
from store_core.storage.digest import crc32c
from store_core.storage.half_applied import half_changed
from store_core.storage.journal import State, unfinished
from tests.recording import Killed, RecordingOps, tree
from tests.recovery.sample import make_plan, make_tree
from tests.recovery.settling import finish_or_roll_back
from tests.rmqctl.calls import call
from tests.stores import snapshot

Entries = list[dict[str, Any]]
PREPARED = b'{"entry":"prepared"'
WRITERS = (
    ("put", "T", "x"),
    ("pull", "T", "0", "--commit", "--group", "g"),
    ("recover", "--apply", "--yes"),
    ("truncate", "0", "--apply", "--yes"),
    ("rebuild", "all", "--apply"),
    ("checkpoint", "--set", "physic=1", "--apply"),
    ("undo", "--apply"),
)


def interrupt(root: Path, plan: Plan, roots: list[Path], base: Path) -> Path:
    """Kill an apply right after its journal says prepared; gives the change's folder."""
    ops = RecordingOps(
        base, kill_when=lambda primitive: primitive.name == "write" and PREPARED in primitive.arguments[1]
    )
    with pytest.raises(Killed):
        apply(plan, root, writable_roots=roots, ops=ops)
    ops.close()
    head = unfinished(root)
    assert head is not None
    assert head.state is State.PREPARED
    return root / paths.OURS / "undo" / head.id


def rewrite(journal: Path, change: Callable[[Entries], None]) -> None:
    """Give a journal other lines with good checksums, as a stranger can."""
    entries = [json.loads(line[9:]) for line in journal.read_bytes().splitlines() if line]
    change(entries)
    texts = [json.dumps(entry, separators=(",", ":"), sort_keys=True).encode() for entry in entries]
    journal.write_bytes(b"".join(b"%08x %s\n" % (crc32c(text), text) for text in texts))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "store")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "home/log"
    folder.mkdir(parents=True)
    (folder / "precious").write_bytes(b"precious")
    return folder


def outside_plan(root: Path, log: Path) -> Plan:
    draft = Draft(root, writable_roots=[log])
    draft.replace_file(log / "precious", b"stolen")
    draft.create_file(log / "new", b"planted")
    draft.write_range("checkpoint", 0, b"x")
    return draft.plan("recover")


def test_a_journal_that_names_a_root_makes_nothing_write_there(root: Path, elsewhere: Path, tmp_path: Path) -> None:
    folder = interrupt(root, outside_plan(root, elsewhere), [elsewhere], tmp_path)
    before = snapshot(tmp_path)
    for words in WRITERS:
        refused = call(*words, "-s", root, "-o", "json")
        assert (refused.code, refused.json["error"]["code"]) == (2, "usage"), (words, refused.err)
        for told in (str(elsewhere), folder.name, "prepared", "left as it is", f"--commitlog {elsewhere}"):
            assert told in refused.err, words
        assert snapshot(tmp_path) == before, words
    with pytest.raises(UsageError, match="was not named"):
        finish_or_roll_back(root)
    finish_or_roll_back(root, writable_roots=[elsewhere])
    assert (elsewhere / "precious").read_bytes() == b"stolen"
    with pytest.raises(UsageError, match="was not named"):
        undo(root)
    undo(root, apply=True, writable_roots=[elsewhere])
    assert (elsewhere / "precious").read_bytes() == b"precious"


def test_roots_left_out_of_the_journal_help_nobody(root: Path, elsewhere: Path, tmp_path: Path) -> None:
    folder = interrupt(root, outside_plan(root, elsewhere), [elsewhere], tmp_path)
    rewrite(folder / "journal", lambda entries: entries[0].update(writable_roots=[]))
    before = snapshot(elsewhere)
    with pytest.raises(UsageError, match="is left as it is: lies outside the store"):
        finish_or_roll_back(root)
    assert snapshot(elsewhere) == before
    forget(root, folder.name, abandon=True)
    assert not (root / paths.OURS).exists()
    assert snapshot(elsewhere) == before


def entry(entries: Entries, kind: str, path: str | None = None) -> dict[str, Any]:
    return next(e for e in entries if e["entry"] == kind and path in (None, e["path"]))


REPLACED = "consumequeue/T/0/00000000000000000000"
LIES: dict[str, Callable[[Entries], None]] = {
    "kept elsewhere": lambda e: entry(e, "original", REPLACED).update(kept="checkpoint"),
    "kept upwards": lambda e: entry(e, "original", REPLACED).update(kept=".rmqctl/../../home/log/precious"),
    "kept in another change": lambda e: entry(e, "original", REPLACED).update(kept=".rmqctl/undo/0002-x-y/kept/0"),
    "staged absolute": lambda e: entry(e, "staged", REPLACED).update(staged="/etc/passwd"),
    "staged with NUL": lambda e: entry(e, "staged", REPLACED).update(staged="a\0b"),
    "folder outside": lambda e: entry(e, "folder").update(path="/tmp"),
    "folder upwards": lambda e: entry(e, "folder").update(path=".."),
    "no original": lambda e: e.remove(entry(e, "original", REPLACED)),
    "no staged": lambda e: e.remove(entry(e, "staged", REPLACED)),
    "another file": lambda e: entry(e, "original", REPLACED).update(path="config/more.json"),
    "a huge length": lambda e: entry(e, "original", REPLACED).update(size_bytes=1 << 70),
    "a text for a mode": lambda e: entry(e, "folder").update(mode="777"),
    "a field less": lambda e: entry(e, "staged").pop("crc32c"),
    "a field more": lambda e: entry(e, "staged").update(more=1),
    "ranges of anything": lambda e: entry(e, "original").update(ranges=[1]),
    "another plan": lambda e: e[0].update(plan_id="0" * 16),
    "odd roots": lambda e: e[0].update(writable_roots={"a": 1}),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_a_journal_are_refused(root: Path, tmp_path: Path, elsewhere: Path, lie: str) -> None:
    folder = interrupt(root, make_plan(root), [], tmp_path)
    rewrite(folder / "journal", LIES[lie])
    before = tree(tmp_path)
    for act in (lambda: finish_or_roll_back(root), lambda: undo(root, apply=True)):
        with pytest.raises(StoreError) as refused:
            act()
        assert refused.value.to_do
        assert tree(tmp_path) == before
    assert [change.state for change in list_undo(root)] == ["prepared"]
    forget(root, folder.name, abandon=True)


LINKED = (".rmqctl", ".rmqctl/undo", "ID", "ID/journal", "ID/plan.json", "ID/staged", "ID/kept", "ID/staged/0", "ID/kept/0",
          "consumequeue/T", "commitlog")  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_links_among_the_files_of_a_change_are_not_followed(
    root: Path, tmp_path: Path, elsewhere: Path, name: str
) -> None:
    folder = interrupt(root, make_plan(root), [], tmp_path)
    path = root / name.replace("ID", str(folder.relative_to(root)))
    path = next(path.parent.iterdir()) if name.endswith("/0") else path
    path.rename(elsewhere / "moved")
    path.symlink_to(elsewhere / "moved")
    before = tree(tmp_path)
    with pytest.raises(StoreError):
        finish_or_roll_back(root)
    with pytest.raises(StoreError):
        undo(root, apply=True)
    with pytest.raises(StoreError):
        apply(make_plan_of_abort(root), root)
    assert tree(tmp_path) == before
    half_changed(root)


def make_plan_of_abort(root: Path) -> Plan:
    draft = Draft(root)
    draft.remove_file("abort")
    return draft.plan("recover")


def test_a_folder_that_is_a_link_gets_no_mode(root: Path, elsewhere: Path, tmp_path: Path) -> None:
    """An undo that was interrupted makes the folder again that the change removed."""
    draft = Draft(root)
    (root / "empty").mkdir()
    draft.remove_folder("empty")
    apply(draft.plan("recover"), root)
    (journal,) = root.glob(".rmqctl/undo/*/journal")
    rewrite(journal, lambda e: (entry(e, "folder", "empty").update(mode=0o4777), e.append({"entry": "undoing"}))[0])
    (root / "empty").symlink_to(elsewhere)
    mode = elsewhere.stat().st_mode
    with pytest.raises(StoreError):
        finish_or_roll_back(root)
    assert elsewhere.stat().st_mode == mode
    (root / "empty").unlink()
    finish_or_roll_back(root)
    assert (root / "empty").stat().st_mode & 0o7777 == 0o755


def test_a_file_that_waits_with_a_wide_mode_is_refused(root: Path, tmp_path: Path) -> None:
    folder = interrupt(root, make_plan(root), [], tmp_path)
    staged = next((folder / "staged").iterdir())
    for mode in (0o4755, 0o666, 0o644 | 0o111):
        staged.chmod(mode)
        with pytest.raises(FailedError, match="mode"):
            finish_or_roll_back(root)


@pytest.mark.parametrize("file", ["journal", "plan.json"])
def test_a_sparse_journal_or_plan_of_3_gb_is_not_read(root: Path, tmp_path: Path, file: str) -> None:
    folder = interrupt(root, make_plan(root), [], tmp_path)
    os.truncate(folder / file, 3 << 30)
    for act in (lambda: finish_or_roll_back(root), lambda: undo(root, apply=True)):
        with pytest.raises(FailedError, match="has more than 134"):
            act()
    if file == "journal":
        assert "more than" in str(half_changed(root))
        with pytest.raises(FailedError, match="more than"):
            list_undo(root)
    else:
        assert list_undo(root)[0].state == "prepared"


def test_only_the_ends_of_a_long_journal_are_read_to_report_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(make_plan(root), root)
    (journal,) = root.glob(".rmqctl/undo/*/journal")
    rewrite(journal, lambda e: e.__setitem__(slice(1, 1), [{"entry": "original", "path": "x" * 99}] * 9000))
    read = list[int]()
    real = os.pread
    monkeypatch.setattr(
        "store_core.storage.journal._parse", lambda line: (read.append(len(line)), json.loads(line[9:]))[1]
    )
    assert unfinished(root) is None
    assert [change.kind for change in list_undo(root)] == ["recover"]
    assert len(read) == 2
    assert real is os.pread


def test_a_plan_nested_deep_is_no_plan(tmp_path: Path) -> None:
    for data in (b"[" * 200_000, b'{"format":"rmqctl plan","steps":' + b"[" * 200_000):
        (tmp_path / "plan.json").write_bytes(data)
        with pytest.raises(UsageError):
            load_plan(tmp_path / "plan.json")


def test_a_huge_run_of_zeros_is_digested_staged_and_undone_sparsely(root: Path) -> None:
    """Byte by byte this would take hours."""
    size_bytes = 1 << 43
    assert Content((b"a", Zeros(size_bytes), b"b")).digest().size_bytes == size_bytes + 2
    before = tree(root)
    os.truncate(root / "abort", size_bytes)
    draft = Draft(root)
    draft.zero_range("abort", 10, size_bytes - 20)
    draft.create_file("commitlog/9", b"a", Zeros(size_bytes // 2))
    plan = plan_from_bytes(plan_to_bytes(draft.plan("recover")), "x")
    apply(plan, root)
    undo(root, apply=True)
    os.truncate(root / "abort", 0)
    assert tree(root).keys() == before.keys()


@pytest.mark.parametrize("number", [1 << 63, 10**400])
def test_numbers_beyond_any_file_are_no_plan(root: Path, number: int) -> None:
    text = plan_to_bytes(make_plan(root)).replace(b'"offset": 3000', b'"offset": %d' % number)
    with pytest.raises(UsageError):
        plan_from_bytes(text, "x")


def test_put_and_pull_say_what_they_finish(root: Path, tmp_path: Path) -> None:
    for words in (WRITERS[0], WRITERS[1]):
        folder = interrupt(root, make_plan_of_abort(root), [], tmp_path)
        told = call(*words, "-s", root)
        assert f"note: an interrupted recover ({folder.name}) was finished" in told.err
        forget(root, folder.name)
        (root / "abort").touch()
