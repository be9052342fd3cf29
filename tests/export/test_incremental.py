"""An export that goes on where the last one ended: nothing twice, nothing left out, and what stands in the way is told."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError, PlanOutOfDateError, UsageError
from store_core.export.dest.folder import FolderDestination
from store_core.export.export import ExportReport, export_stores
from store_core.export.resume import Work
from store_core.export.runners.local import LocalRunner
from store_core.read.log import LogFilter
from store_core.storage.publish import MANIFEST, ResultFolder
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.export.exports import export_one, manifest_of, parts_on_disk, ranges_of, table_of

STORE = "bcq-533"
SEGMENT_SIZE_BYTES = 65_536
TRUTH = stores.truth(STORE)["messages"]
OFFSETS = [message["phyOffset"] for message in TRUTH]
ENDS = [message["phyOffset"] + message["storeSize"] for message in TRUTH]


class Growing:
    """A store whose log ends where it is told to, with zeros behind in its last file, as a broker leaves them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._log = root / "commitlog"
        self._whole = {path.name: path.read_bytes() for path in self._log.iterdir()}

    def end_at(self, phy_offset: int) -> None:
        for name, data in self._whole.items():
            keep = min(max(phy_offset - int(name), 0), len(data))
            path = self._log / name
            if keep:
                path.write_bytes(data[:keep] + bytes(len(data) - keep))
            else:
                path.unlink(missing_ok=True)

    def remove_before(self, phy_offset: int) -> None:
        for path in list(self._log.iterdir()):
            if int(path.name) + SEGMENT_SIZE_BYTES <= phy_offset:
                path.unlink()


@pytest.fixture
def growing(store_copy: StoreCopy) -> Growing:
    return Growing(store_copy(STORE))


def add_to(root: Path, out: Path, wanted: LogFilter | None = None, **options: Any) -> ExportReport:
    return export_one(root, out, wanted, incremental=True, split_size_bytes=30_000, **options)


def rows_of(out: Path) -> list[int]:
    found: list[int] = table_of(out)["phy_offset"].to_pylist()
    return found


def test_each_commit_adds_what_has_come_since(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ends = [ENDS[0], ENDS[7], ENDS[7], ENDS[len(ENDS) // 2], ENDS[len(ENDS) // 2 + 1], ENDS[-1], ENDS[-1]]
    before: set[str] = set()
    for number, end in enumerate(ends):
        growing.end_at(end)
        report = add_to(growing.root, out)
        assert rows_of(out) == [offset for offset in OFFSETS if offset < end]
        assert report.stores[0].next_phy_offset == end
        assert report.rows == sum(ends[number - 1] <= offset < end for offset in OFFSETS) if number else 1
        manifest = manifest_of(out)
        files = {file["path"]: file["commit"] for file in manifest["files"]}
        assert files.keys() | {MANIFEST} == parts_on_disk(out)
        assert before <= files.keys()
        assert {files[part.path] for part in report.parts} <= {report.commit}
        assert sum(commit["rows"] for commit in manifest["commits"]) == manifest["rows"] == len(rows_of(out))
        before = set(files)
    assert [commit["commit"] for commit in manifest["commits"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_file_of_an_earlier_commit_that_is_gone_is_told(growing: Growing, tmp_path: Path, how: str) -> None:
    """Each time, also where there is nothing to add."""
    out = tmp_path / "out"
    growing.end_at(ENDS[len(ENDS) // 2])
    first = add_to(growing.root, out).parts[0].path
    if how == "removed":
        (out / first).unlink()
    else:
        (out / first).write_bytes(b"")
    growing.end_at(ENDS[-1])
    for _ in range(2):
        report = add_to(growing.root, out)
        [told] = [found for found in report.findings if found.code == "X001"]
        assert told.message == f"a file of an earlier commit is gone or of another length: {first}"
    assert "X001" not in (out / MANIFEST).read_text()
    assert export_one(growing.root, out, overwrite=True).findings == []


def test_a_folder_that_was_moved_and_linked_is_there(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    growing.end_at(ENDS[len(ENDS) // 2])
    add_to(growing.root, out)
    (out / "data").rename(tmp_path / "elsewhere")
    (out / "data").symlink_to(tmp_path / "elsewhere")
    assert "X001" not in [found.code for found in add_to(growing.root, out).findings]


def test_as_many_commits_as_records_give_what_one_gives(growing: Growing, tmp_path: Path) -> None:
    for end in ENDS[:12]:
        growing.end_at(end)
        add_to(growing.root, tmp_path / "many")
    export_one(growing.root, tmp_path / "one")
    assert table_of(tmp_path / "many").equals(table_of(tmp_path / "one"))


def test_what_has_expired_is_told_with_its_size(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    growing.end_at(ENDS[9])
    add_to(growing.root, out)
    growing.end_at(ENDS[-1])
    growing.remove_before(3 * SEGMENT_SIZE_BYTES)
    report = add_to(growing.root, out)
    [found] = report.findings
    lost = 3 * SEGMENT_SIZE_BYTES - ENDS[9]
    assert (found.code, found.severity, found.phy_offset, found.size_bytes) == ("L020", "warning", ENDS[9], lost)
    assert str(lost) in found.message
    assert rows_of(out) == [o for o in OFFSETS if o < ENDS[9] or o >= 3 * SEGMENT_SIZE_BYTES]
    assert add_to(growing.root, out).findings == []
    assert manifest_of(out)["stores"][0]["findings"] == {"L020": 1}


def test_what_has_expired_behind_the_last_commit_is_no_loss(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    growing.end_at(3 * SEGMENT_SIZE_BYTES)  # a blank ends the segment
    add_to(growing.root, out)
    growing.end_at(ENDS[-1])
    growing.remove_before(3 * SEGMENT_SIZE_BYTES)
    assert add_to(growing.root, out).findings == []
    assert rows_of(out) == OFFSETS


@pytest.mark.parametrize("how", ["zeroed", "removed", "rewritten", "another store"])
def test_a_log_that_has_been_cut_is_an_error(growing: Growing, store_copy: StoreCopy, tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    growing.end_at(ENDS[60])
    add_to(growing.root, out)
    before = {name: (out / name).read_bytes() for name in parts_on_disk(out)}
    root = growing.root
    if how == "zeroed":
        growing.end_at(ENDS[59])
    elif how == "removed":
        growing.end_at(ENDS[2])
    elif how == "rewritten":
        growing.end_at(ENDS[59])
        path = root / "commitlog" / f"{OFFSETS[60] // SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES:020d}"
        record = bytearray(growing._whole["0" * 20][OFFSETS[0] : ENDS[0]])
        record[28:36] = OFFSETS[60].to_bytes(8, "big")
        with path.open("r+b") as file:
            file.seek(OFFSETS[60] % SEGMENT_SIZE_BYTES)
            file.write(record)
    else:
        root = store_copy("load-533")
    with pytest.raises(PlanOutOfDateError, match=r"--overwrite, or to another place"):
        add_to(root, out)
    assert {name: (out / name).read_bytes() for name in parts_on_disk(out)} == before


def test_another_filter_or_layout_is_an_error(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    topics = LogFilter(topics=frozenset({TRUTH[0]["topic"]}))
    add_to(growing.root, out, topics)
    assert add_to(growing.root, out, topics).parts == ()
    for wanted in (LogFilter(), LogFilter(topics=frozenset({"other"})), LogFilter(0, topics=topics.topics)):
        with pytest.raises(UsageError, match="the filter is not that of the last commit"):
            add_to(growing.root, out, wanted)


def test_a_filter_by_topic_goes_on_behind_what_it_left_out(growing: Growing, tmp_path: Path) -> None:
    topics = LogFilter(topics=frozenset({TRUTH[-1]["topic"]}))
    for end in (ENDS[5], ENDS[100], ENDS[-1]):
        growing.end_at(end)
        report = add_to(growing.root, tmp_path / "out", topics)
        assert report.stores[0].next_phy_offset == end
    assert rows_of(tmp_path / "out") == [m["phyOffset"] for m in TRUTH if m["topic"] == TRUTH[-1]["topic"]]


def test_a_store_may_join_later(growing: Growing, store_copy: StoreCopy, tmp_path: Path) -> None:
    from store_core.export.export import export_stores
    from store_core.export.runners.local import LocalRunner
    from store_core.storage.store import Store

    out = tmp_path / "out"
    add_to(growing.root, out)
    with Store.open(growing.root) as first, Store.open(store_copy("clean-533")) as second:
        report = export_stores([("a", first), ("b", second)], out, LocalRunner(1), incremental=True)
    assert [store.rows for store in report.stores] == [0, len(stores.truth("clean-533")["messages"])]
    assert len(table_of(out)) == len(TRUTH) + report.rows
    assert add_to(growing.root, out).rows == 0  # and stay away


@pytest.mark.parametrize("names", [("北京", "上海"), ("broker a", "broker_a"), (".a", "a"), ("b:1", "b/1")])
def test_stores_with_names_that_no_file_may_have_join_one_by_one(
    names: tuple[str, str], golden: GoldenStore, tmp_path: Path
) -> None:
    """Each commit has its own files, though none of them is in both."""
    from store_core.export.export import export_stores
    from store_core.export.runners.local import LocalRunner
    from store_core.storage.store import Store

    out, kinds = tmp_path / "out", ("clean-533", "clean-497")
    for name, kind in zip(names, kinds, strict=True):
        with Store.open(golden(kind)) as store:
            export_stores([(name, store)], out, LocalRunner(1), incremental=True)
    counts = {name: len(stores.truth(kind)["messages"]) for name, kind in zip(names, kinds, strict=True)}
    assert Counter(table_of(out)["store"].to_pylist()) == counts


@pytest.mark.parametrize("lost", [1, 60])
def test_a_copy_that_lags_behind_is_not_taken_twice_either(growing: Growing, tmp_path: Path, lost: int) -> None:
    """A slave, or an older backup, that lacks the last records, at least one of them."""
    from store_core.export.export import export_stores
    from store_core.export.runners.local import LocalRunner
    from store_core.storage.store import Store

    out = tmp_path / "out"
    growing.end_at(ENDS[100])
    add_to(growing.root, out)
    growing.end_at(ENDS[-1])
    add_to(growing.root, out)
    growing.end_at(ENDS[-1 - lost])
    with Store.open(growing.root) as slave:
        with pytest.raises(UsageError, match="the log of b has been exported as a"):
            export_stores([("b", slave)], out, LocalRunner(1), incremental=True)
        assert rows_of(out) == OFFSETS
        assert export_stores([("b", slave)], out, LocalRunner(1), incremental=True, keep_copies=True).rows > 0


def test_a_log_under_another_name_is_not_taken_twice(growing: Growing, store_copy: StoreCopy, tmp_path: Path) -> None:
    from store_core.export.export import export_stores
    from store_core.export.runners.local import LocalRunner
    from store_core.storage.store import Store

    out = tmp_path / "out"
    growing.end_at(ENDS[60])
    add_to(growing.root, out)
    with Store.open(store_copy(STORE)) as slave:
        with pytest.raises(
            UsageError, match=rf"the log of b has been exported as a, up to {ENDS[60]} .*: name it as before, -s a=PATH"
        ):
            export_stores([("b", slave)], out, LocalRunner(1), incremental=True)
        assert rows_of(out) == OFFSETS[:61]
        report = export_stores([("b", slave)], out, LocalRunner(1), incremental=True, keep_copies=True)
        assert report.rows == len(OFFSETS)
        assert export_stores([("b", slave)], out, LocalRunner(1), incremental=True).rows == 0  # known by now


def test_the_torn_tail_is_quarantined_once(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    growing.end_at(ENDS[9] + 40)
    first = add_to(growing.root, out)
    again = add_to(growing.root, out)
    told = ranges_of(out)
    assert [found.code for found in first.findings] == [found.code for found in again.findings] == ["L004"]
    assert [(at, finding) for at, _, _, _, finding in told] == [(ENDS[9], "L004")]
    assert again.commit == 1
    growing.end_at(ENDS[-1])
    assert add_to(growing.root, out).findings == []
    assert rows_of(out) == OFFSETS
    assert ranges_of(out) == told


def test_damage_in_front_of_the_border_is_told_once(damaged: DamagedStore, tmp_path: Path) -> None:
    root = damaged("load-533", "zero-page-mid")
    first = add_to(root, tmp_path / "out")
    told = ranges_of(tmp_path / "out")
    again = add_to(root, tmp_path / "out")
    assert first.findings
    assert (again.findings, again.rows, ranges_of(tmp_path / "out")) == ([], 0, told)


def test_a_manifest_that_cannot_be_read(growing: Growing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    add_to(growing.root, out)
    manifest = (out / MANIFEST).read_text()
    for text, words in (
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"format": "another"}', "cannot be read"),
        (manifest.replace('"proof"', '"poof"'), "cannot be read"),
        (manifest.replace('"manifest_version": 2', '"manifest_version": 3'), "another version"),
        (manifest.replace('"manifest_version": 2,', ""), "another version"),
    ):
        (out / MANIFEST).write_text(text)
        with pytest.raises((FailedError, UsageError), match=words):
            add_to(growing.root, out)
        assert (out / MANIFEST).read_text() == text
        assert len(parts_on_disk(out)) > 3


def test_a_killed_commit_leaves_the_one_before(
    growing: Growing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its manifest, which is what says what belongs to it; the rerun ends the commit."""
    out = tmp_path / "out"
    growing.end_at(ENDS[40])
    add_to(growing.root, out)
    before = manifest_of(out)
    growing.end_at(ENDS[-1])
    with monkeypatch.context() as patch:
        patch.setattr(FolderDestination, "publish", _published_by_half)
        with pytest.raises(KeyboardInterrupt):
            add_to(growing.root, out)
    assert manifest_of(out) == before
    assert len(parts_on_disk(out)) > len(before["files"]) + 1
    report = add_to(growing.root, out)
    assert report.taken > 3
    assert rows_of(out) == OFFSETS
    assert {file["path"] for file in manifest_of(out)["files"]} | {MANIFEST} == parts_on_disk(out)


def test_whoever_was_killed_behind_a_commit_told_nothing(
    damaged: DamagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So whoever comes next tells it, once, and counts it only once."""
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ResultFolder, "_clear", lambda self: None)
        killed = add_to(root, out)
    assert killed.findings
    before = manifest_of(out)
    report = add_to(root, out)
    assert {(found.code, found.message) for found in report.findings} == {
        (code, f"{count} up to commit 1, whose export was ended before it could report them")
        for code, count in Counter(found.code for found in killed.findings).items()
    }
    assert (report.rows, report.commit) == (0, 1)
    assert manifest_of(out) == before
    assert add_to(root, out).findings == []


def test_findings_that_nobody_told_wait_for_whoever_can_tell_them(
    damaged: DamagedStore, golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a run that is refused, one that fails, and one that is killed; and those of a store that the run does not name."""
    root, out = damaged("load-533", "zero-page-mid"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ResultFolder, "_clear", lambda self: None)
        assert add_to(root, out).findings
    with pytest.raises(UsageError, match="the filter is not that of the last commit"):
        add_to(root, out, LogFilter(topics=frozenset({"Calm_audit"})))
    for stopped in (FailedError("the disk is full"), KeyboardInterrupt()):
        with monkeypatch.context() as patch:
            patch.setattr(Work, "_taken", raises(stopped))
            with pytest.raises(type(stopped)):
                add_to(root, out)
    other = export_stores_into(out, [("b", golden(STORE))])
    assert {found.message for found in other.findings} == {
        "1 up to commit 1 of a, whose export was ended before it could report them"
    }
    assert add_to(root, out).findings == []


def test_findings_of_several_commits_that_nobody_told(
    damaged: DamagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is killed behind a commit tells nothing of those before it either."""
    stores = [("a", damaged("load-533", "zero-page-mid")), ("b", damaged("load-497", "zero-page-mid"))]
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ResultFolder, "_clear", lambda self: None)
        for count in (1, 2):
            met = [store.findings for store in export_stores_into(out, stores[:count]).stores]
    report = export_stores_into(out, stores)
    said = "1 up to commit 2, whose export was ended before it could report them"
    assert [{(found.code, found.message) for found in store.findings} for store in report.stores] == [
        {(found.code, said) for found in findings} for findings in met
    ]
    assert report.commit == 2
    assert export_stores_into(out, stores).findings == []


def raises(error: BaseException) -> Any:
    def method(*_: object) -> None:
        raise error

    return method


def export_stores_into(out: Path, roots: list[tuple[str, Path]]) -> ExportReport:
    with ExitStack() as opened:
        named = [(name, opened.enter_context(Store.open(root))) for name, root in roots]
        return export_stores(named, out, LocalRunner(1), incremental=True, split_size_bytes=30_000)


def _published_by_half(self: FolderDestination, parts: Any, commit: object, state: object) -> None:
    for part in parts[: len(parts) // 2]:
        (self._folder.staging / part.staged).rename(self._folder.path / part.path)
    raise KeyboardInterrupt


def test_a_range_whose_last_record_ends_behind_it_is_done_once(growing: Growing, tmp_path: Path) -> None:
    wanted = LogFilter(to_phy_offset=OFFSETS[40] + 9)
    assert add_to(growing.root, tmp_path / "out", wanted).rows == 41
    report = add_to(growing.root, tmp_path / "out", wanted)
    assert (report.rows, report.commit, report.findings) == (0, 1, [])


def test_a_range_that_begins_behind_the_logs_end(growing: Growing, tmp_path: Path) -> None:
    """Nobody knows that a record ends where it begins."""
    wanted = LogFilter(from_phy_offset=OFFSETS[40] + 9)
    for last in (
        38,
        2,
    ):  # of the records that are there at first: in the file in which the range begins, or in one in front
        out = tmp_path / str(last)
        growing.end_at(ENDS[last])
        assert add_to(growing.root, out, wanted).rows == 0
        assert add_to(growing.root, out, wanted).rows == 0
        growing.end_at(ENDS[-1])
        assert add_to(growing.root, out, wanted).findings == []
        assert rows_of(out) == OFFSETS[41:]
        assert ranges_of(out) == []


def test_a_log_that_is_away_is_not_taken_for_one_that_was_cut(growing: Growing, tmp_path: Path) -> None:
    """Whoever exported it anew would have nothing in place of all."""
    out = tmp_path / "out"
    growing.end_at(ENDS[-1])
    add_to(growing.root, out)
    log = growing.root / "commitlog"
    log.rename(tmp_path / "away")
    for make in (lambda: None, log.mkdir):
        make()
        with pytest.raises(PlanOutOfDateError, match=r"has no file, but has been exported up to .* disk is mounted"):
            add_to(growing.root, out)
    log.rmdir()
    (tmp_path / "away").rename(log)
    assert add_to(growing.root, out).rows == 0
