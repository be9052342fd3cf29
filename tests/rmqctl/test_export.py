"""`rmqctl export` as its users run it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl import exit_codes
from store_core.storage.publish import UNFINISHED
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.export.exports import files_of, parts_on_disk, ranges_of, table_of
from tests.object_stores import ObjectStore
from tests.refusing import call_without_privileges
from tests.rmqctl.calls import call, command, environment
from tests.rmqctl.stopping import stopped

TRUTH = stores.truth("clean-533")["messages"]


def test_the_result_tells_what_was_written(
    golden: GoldenStore, read_only: Callable[[Path], Path], tmp_path: Path
) -> None:
    done = call("export", tmp_path / "out", "-s", f"a={read_only(golden('clean-533'))}", "-o", "json")
    assert (done.code, done.err) == (0, "")
    assert done.json["dest"] == str(tmp_path / "out")
    assert done.json["rows"] == len(TRUTH) == len(table_of(tmp_path / "out"))
    assert {file["path"] for file in done.json["files"]} | {"manifest.json"} == parts_on_disk(tmp_path / "out")
    assert done.json["bytes_written"] == sum(file["size_bytes"] for file in done.json["files"])
    end = TRUTH[-1]["phyOffset"] + TRUTH[-1]["storeSize"]
    assert done.json["stores"] == [{"store": "a", "from_phy_offset": 0, "next_phy_offset": end, "findings": []}]


def test_damage_is_quarantined_and_ends_with_3(damaged: DamagedStore, tmp_path: Path) -> None:
    done = call("export", tmp_path / "out", "-s", damaged("load-533", "zero-page-mid"), "-o", "json")
    assert done.code == 3
    [store] = done.json["stores"]
    ranges = ranges_of(tmp_path / "out")
    assert [(f["phy_offset"], f["size_bytes"], f["code"]) for f in store["findings"]] == [
        (offset, size, finding) for offset, size, _, _, finding in ranges
    ]
    assert ranges


def test_several_stores_have_a_column(golden: GoldenStore, tmp_path: Path) -> None:
    named = [f"a={golden('clean-533')}", f"b={golden('bcq-533')}"]
    done = call("export", tmp_path / "out", "-s", named[0], "-s", named[1], "--jobs", 2, "-o", "json")
    assert done.code == 0
    counted = table_of(tmp_path / "out")["store"].value_counts().to_pylist()
    assert {row["values"]: row["counts"] for row in counted} == {
        "a": len(TRUTH),
        "b": len(stores.truth("bcq-533")["messages"]),
    }
    assert [store["store"] for store in done.json["stores"]] == ["a", "b"]


def test_processes_side_by_side_give_the_same(golden: GoldenStore, tmp_path: Path) -> None:
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        assert call("export", out, "-s", golden("clean-533"), "--jobs", jobs, "--split-size", "100k").code == 0
    files = [{p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*.*")} for n in ("1", "2")]
    assert files[0] == files[1]
    assert len(files[0]) > 4


def test_filters(golden: GoldenStore, tmp_path: Path) -> None:
    topic = TRUTH[40]["topic"]
    times = sorted(m["storeTimestamp"] for m in TRUTH)
    begin, end = times[len(times) // 4], times[len(times) // 2]
    first, stop = TRUTH[100]["phyOffset"], TRUTH[700]["phyOffset"]
    asked: dict[str, tuple[list[object], Callable[[dict[str, Any]], bool]]] = {
        "topic": (["--topic", topic], lambda m: m["topic"] == topic),
        "time": (["--begin", begin, "--end", end], lambda m: begin <= m["storeTimestamp"] <= end),
        "offset": (["--from", first, "--to", stop], lambda m: first <= m["phyOffset"] < stop),
        "nothing": (["--topic", "nosuch"], lambda m: False),
    }
    for name, (options, keeps) in asked.items():
        assert call("export", tmp_path / name, "-s", golden("clean-533"), *options).code == 0
        found = table_of(tmp_path / name)["phy_offset"].to_pylist()
        assert found == [m["phyOffset"] for m in TRUTH if keeps(m)], name


@pytest.mark.spark
def test_spark_and_its_options(golden: GoldenStore, tmp_path: Path) -> None:
    """One submission from end to end: JSON alone on stdout, the same files."""
    options = ["-s", f"a={golden('bcq-533')}", "-o", "json"]
    assert call("export", tmp_path / "local", *options).code == 0
    done = call(
        "export", tmp_path / "spark", "--spark", "--master", "local[1]", "--conf", "spark.driver.memory=512m", *options
    )
    assert (done.code, done.err) == (0, "")
    assert done.json["rows"] == len(stores.truth("bcq-533")["messages"])
    for name in parts_on_disk(tmp_path / "local"):
        assert (tmp_path / "spark" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    assert call("export", tmp_path / "x", "--master", "local[1]", *options).code == 2
    assert call("export", tmp_path / "x", "--spark", "--conf", "nonsense", *options).code == 2
    assert not (tmp_path / "x").exists()


def test_what_stands_in_the_way(golden: GoldenStore, store_copy: StoreCopy, tmp_path: Path) -> None:
    store = golden("bcq-533")
    out = tmp_path / "out"
    assert call("export", out, "-s", store).code == 0
    first = parts_on_disk(out)
    again = call("export", out, "-s", store)
    assert (again.code, again.err.startswith("error: a finished export is there")) == (2, True)
    none = call("export", out, "-s", store, "--overwrite", "--topic", "nosuch")
    assert (none.code, none.err) == (0, "note: no message of these topics is there\n")
    assert parts_on_disk(out) == {"manifest.json", "data/empty.parquet", "quarantine/empty.parquet"} != first

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("precious")
    for options in ([], ["--overwrite"]):
        assert call("export", foreign, "-s", store, *options).code == 2
    assert parts_on_disk(foreign) == {"mine.txt"}
    assert call("export", foreign / "mine.txt", "-s", store).code == 2

    for manifest in ('{"name": "an app", "display": "standalone"}', "[]", "{", "null", ""):
        (foreign / "manifest.json").write_text(manifest)
        (foreign / "data").mkdir(exist_ok=True)
        (foreign / "data" / "mine.parquet").write_text("precious")
        for options in ([], ["--overwrite"], ["--incremental"], ["--what", "index", "--overwrite"]):
            done = call("export", foreign, "-s", store, *options)
            assert (done.code, done.out, "name a new or an empty folder" in done.err) == (2, "", True)
            assert (foreign / "manifest.json").read_text() == manifest
            assert parts_on_disk(foreign) == {"mine.txt", "manifest.json", "data/mine.parquet"}

    writable = store_copy("bcq-533")
    inside = call("export", writable / "commitlog" / "out", "-s", writable)
    assert (inside.code, "inside the store" in inside.err) == (2, True)
    assert call("export", tmp_path / "no", "-s", tmp_path / "missing").code == 10
    assert not (tmp_path / "no").exists()


def test_a_killed_export_is_taken_up_from_the_start(golden: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "data").mkdir(parents=True)
    (out / UNFINISHED).mkdir()
    (out / UNFINISHED / "0123.parquet").write_bytes(b"half")
    (out / UNFINISHED / "files.txt").write_text("data/moved-in.parquet\n")
    (out / "data" / "moved-in.parquet").write_bytes(b"of a publication that broke off")
    assert call("export", out, "-s", f"a={golden('bcq-533')}").code == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert parts_on_disk(out) == {"manifest.json", *(file["path"] for file in manifest["files"])}


PUBLISHING = "store_core.storage.publish:ResultFolder.publish"
FIRST_TASK_DONE = "concurrent.futures:Future.result"  # with more to do for the workers
LOCKING = "store_core.storage.publish:ResultFolder._take_lock"
NOTING = "store_core.storage.publish:ResultFolder.note"


@pytest.mark.product(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_export_stopped_before_anything_is_done_leaves_nothing(
    golden: GoldenStore, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "deep" / "out"
    words = ("export", out, "-s", golden("crash-533"), "--split-size", "100k", "--jobs", 2)
    with stopped(FIRST_TASK_DONE, *words) as process:
        assert list(out.glob(f"{UNFINISHED}/*.parquet"))
        for each in (number, signal.SIGCONT):
            os.killpg(process.pid, each)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (code, False), err
    assert list(tmp_path.iterdir()) == []


def test_an_export_stopped_before_it_has_begun_leaves_nothing(golden: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with stopped(LOCKING, "export", out, "-s", golden("crash-533")) as process:
        assert (out / UNFINISHED).exists()
        for each in (signal.SIGINT, signal.SIGCONT):
            os.killpg(process.pid, each)
        assert process.wait(60) == exit_codes.INTERRUPTED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.product(1)
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_export_stopped_amid_its_splits_goes_on(jobs: int, golden: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("export", out, "-s", f"a={golden('crash-533')}", "--split-size", "100k")
    with stopped(NOTING, *words, "--jobs", jobs) as process:
        for _ in range(2):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            os.kill(process.pid, signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        for each in (signal.SIGINT, signal.SIGCONT):
            os.killpg(process.pid, each)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (exit_codes.INTERRUPTED, False), err
    kept = int(re.findall(r"(\d+) finished splits are kept", err)[0])
    assert 2 <= kept < 9
    done = call(*words)
    assert (done.code, f"{kept} splits had been done before" in done.err) == (0, True), done.err
    assert call("export", tmp_path / "other", *words[2:]).code == 0
    assert files_of(out) == files_of(tmp_path / "other")


@pytest.mark.product(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_export_goes_on_when_it_is_run_again(
    golden: GoldenStore, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "deep" / "out"
    words = ("export", out, "-s", f"a={golden('crash-533')}", "--split-size", "100k")
    with stopped(PUBLISHING, *words, "--jobs", 1) as process:
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (code, False), err
    assert "finished splits are kept: run the same command to go on" in err
    assert {path.parts[0] for path in map(Path, parts_on_disk(out))} == {UNFINISHED}
    done = call(*words, "--jobs", 2)
    assert (done.code, "splits had been done before" in done.err) == (0, True), done.err
    assert call("export", tmp_path / "other", *words[2:]).code == 0
    assert files_of(out) == files_of(tmp_path / "other")


def test_an_incremental_export(golden: GoldenStore, damaged: DamagedStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("export", out, "-s", f"a={golden('crash-533')}", "--incremental", "-o", "json")
    first, again = call(*words), call(*words)
    assert (first.code, first.json["commit"]) == (0, 1)
    assert (again.code, again.json["commit"], again.json["rows"], again.json["files"]) == (0, 1, 0, [])
    assert "nothing new since the last export" in again.err
    other = call(*words, "--topic", "nosuch")
    assert (other.code, "the filter is not that of the last commit: topics" in other.err) == (2, True)
    elsewhere = call("export", out, "-s", f"a={golden('bcq-533')}", "--incremental", "-o", "json")
    assert (elsewhere.code, elsewhere.json["error"]["code"]) == (12, "out_of_date")
    assert call(*words, "--overwrite").code == 2
    assert len(table_of(out)) == first.json["rows"]


def test_two_exports_into_one_folder(golden: GoldenStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stopped(PUBLISHING, "export", out, "-s", golden("crash-533"), "--jobs", "1") as first:
        second = call("export", out, "-s", golden("bcq-533"))
        assert (second.code, "another export" in second.err) == (11, True)
        first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 0
    assert len(table_of(out)) == len(stores.truth("crash-533")["messages"])


def test_a_disk_that_is_full_is_told(golden: GoldenStore, tmp_path: Path) -> None:
    """A limit on file sizes stands in for it."""
    script = 'ulimit -f 8; trap "" XFSZ; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "-", *command("export", tmp_path / "out", "-s", golden("clean-533"))],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith("error: writing a result file")) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_formats_and_layouts(golden: GoldenStore, tmp_path: Path) -> None:
    words = ("-s", f"a={golden('clean-533')}", "-o", "json", "--split-size", "200k")
    for kind in ("parquet", "delta", "iceberg"):
        done = call("export", tmp_path / kind, *words, "--format", kind, "--partition-by", "topic")
        assert (done.code, done.err, done.json["rows"]) == (0, "", len(TRUTH))
        assert {file["partition"][1] for file in done.json["files"] if file["rows"]} == {m["topic"] for m in TRUTH}
        again = call("export", tmp_path / kind, *words, "--format", kind, "--partition-by", "topic")
        assert (again.code, "a finished export is there" in again.err) == (2, True)
        other = call("export", tmp_path / kind, *words, "--format", kind, "--cluster", "offset", "--incremental")
        assert (other.code, "the layout is not that of the last commit: cluster, partition_by" in other.err) == (
            2,
            True,
        )
    assert call("export", tmp_path / "x", *words, "--catalog", "sqlite://").code == 2
    assert call("export", "ftp://host/x", *words).code == 2
    wrong = call("export", tmp_path / "y", *words, "--format", "iceberg", "--catalog", "nonsense://x")
    assert (wrong.code, "Traceback" in wrong.err) == (2, False)


def test_an_address_in_an_object_store(golden: GoldenStore, object_store: ObjectStore) -> None:
    words = ("-s", f"a={golden('bcq-533')}", "-o", "json", "--incremental")
    first = call("export", "s3://stores/of-the-command/out", *words)
    assert (first.code, first.json["dest"]) == (0, "s3://stores/of-the-command/out")
    assert call("export", "s3://stores/of-the-command/out", *words).json["rows"] == 0
    for address in ("s3://nosuchbucket/out", "s3://"):
        done = call("export", address, *words)
        assert (done.code in (1, 2, 10), "Traceback" in done.err) == (True, False), done.err


def test_what_is_nearly_an_address_is_no_folder(
    golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("export", "s3:/stores/out", "-s", golden("clean-533"))
    assert (result.code, result.err) == (
        2,
        "error: an address has two slashes after its colon (s3:/stores/out): "
        "name s3://stores/out, or a local folder as ./s3:/stores/out\n",
    )
    assert list(tmp_path.iterdir()) == []
    store = golden("clean-533").as_uri()
    assert call("export", (tmp_path / "out").as_uri(), "-s", store, "-o", "json").json["dest"] == f"{tmp_path}/out"


def test_progress_is_of_what_is_left(golden: GoldenStore, tmp_path: Path) -> None:
    from store_core.export.export import export_stores
    from store_core.export.runners.local import LocalRunner
    from store_core.storage.store import Store

    told: list[int] = []
    planned: list[int] = []

    def on_plan(size_bytes: int) -> Callable[[int], None]:
        planned.append(size_bytes)
        return told.append

    for _ in range(2):
        with Store.open(golden("bcq-533")) as store:
            export_stores([("a", store)], tmp_path / "out", LocalRunner(1), incremental=True, on_plan=on_plan)
    end = stores.truth("bcq-533")["messages"][-1]["phyOffset"] + stores.truth("bcq-533")["messages"][-1]["storeSize"]
    with Store.open(golden("bcq-533")) as store:
        assert planned == [store.log.size_bytes, store.log.size_bytes - end]

    assert max(told) <= planned[0]


def test_a_place_that_cannot_be_written_to(golden: GoldenStore, tmp_path: Path) -> None:
    """What is told to do is about that place, not about the store."""
    (tmp_path / "closed").mkdir(mode=0o555)
    (tmp_path / "dangling").symlink_to("nowhere")
    for place, words in (("closed", "name a folder that may be written to"), ("dangling", "name another one")):
        for dest in (tmp_path / place, tmp_path / place / "below"):
            done = call_without_privileges("export", dest, "-s", golden("bcq-533"))
            assert (done.code, done.out, words in done.err) == (1, "", True), done.err
    assert list((tmp_path / "closed").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()
