"""What of a store is not read: a folder that is not there, as where a disk is not mounted, what stands where a file belongs, and
what lies behind a place where a broker stops."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmqctl import exit_codes
from store_core.errors import FailedError
from store_core.export.source.data_source import StreamReader
from store_core.export.source.options import parse_options
from store_core.export.source.planning import batch_readings, refuse_partial_logs
from store_core.layout import paths
from tests import stores
from tests.conftest import StoreCopy, differences
from tests.damage import Damageable
from tests.rmqctl.calls import call


@pytest.fixture
def parted(store_copy: StoreCopy, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A root, its second log folder with every other segment, and the configuration that names both."""
    root, config = store_copy("load-533", "clean"), tmp_path / "broker.conf"
    second = tmp_path / "disk/commitlog"
    second.mkdir(parents=True)
    for segment in sorted((root / paths.COMMITLOG).iterdir())[1::2]:
        segment.rename(second / segment.name)
    config.write_text(f"storePathRootDir={root}\nstorePathCommitLog={root / paths.COMMITLOG},{second}\n")
    return root, second, config


def codes(words: tuple[object, ...]) -> tuple[int, list[str]]:
    result = call(*words, "-o", "json")
    return result.code, sorted(set(re.findall(r'"code": ?"([A-Z]\d+)"', result.out)))


def unmounted(second: Path) -> None:
    second.rename(second.with_name("elsewhere"))


@pytest.mark.parametrize(
    "words",
    [
        ("info",),
        ("check",),
        ("log", "--max", 3),
        ("verify-crc",),
        ("sql", "select count(*) from messages"),
        ("recover", "--predict"),
    ],
    ids=lambda words: words[0],
)
def test_everything_that_reads_tells_it(parted: tuple[Path, Path, Path], words: tuple[object, ...]) -> None:
    root, second, config = parted
    assert "S010" not in codes((*words, "-c", config))[1]
    unmounted(second)
    before = stores.snapshot(root)
    code, found = codes((*words, "-c", config))
    assert (code, "S010" in found) == (exit_codes.FINDINGS, True), found
    assert differences(before, stores.snapshot(root)) == []


@pytest.mark.parametrize(
    "words",
    [
        ("recover", "--apply", "--yes"),
        ("truncate", 131072, "--apply", "--yes"),
        ("rebuild", "all", "--apply"),
        ("put", "Calm_orders", "text"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_that_writes_goes_on(parted: tuple[Path, Path, Path], words: tuple[object, ...]) -> None:
    """A log that lacks a part looks shorter than it is: what is written behind its end would be there twice once the disk is back."""
    root, second, config = parted
    unmounted(second)
    before = stores.snapshot(root)
    refused = call(*words, "-c", config, "--commitlog", second, "-o", "json")
    assert (refused.code, refused.json["error"]["code"]) == (exit_codes.FAILED, "failed"), refused.err
    assert "a log folder is not there" in refused.err
    assert "mount its disk" in refused.err
    assert differences(before, stores.snapshot(root)) == []
    assert not second.exists()


def test_an_export_tells_it_and_one_that_goes_on_from_a_commit_waits(
    parted: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The next commit would begin behind the segments that are not there, and never come back to them."""
    _, second, config = parted
    words = ("export", tmp_path / "out", "-c", config)
    assert codes(words)[0] == exit_codes.OK
    unmounted(second)
    refused = call(*words, "--incremental", "-o", "json")
    assert (refused.code, refused.json["error"]["code"]) == (exit_codes.FAILED, "failed")
    assert "a log folder is not there" in refused.err
    second.with_name("elsewhere").rename(second)
    assert codes((*words, "--incremental"))[0] == exit_codes.OK
    unmounted(second)
    assert "S010" in codes(("export", tmp_path / "anew", "-c", config))[1]


def test_spark_is_warned_and_a_stream_waits(parted: tuple[Path, Path, Path]) -> None:
    root, second, config = parted
    options = parse_options({"path": f"a={root}", "config": str(config)})
    refuse_partial_logs(options)
    unmounted(second)
    with pytest.warns(UserWarning, match="the log folder is not there"):
        batch_readings(options)
    with pytest.raises(FailedError, match="a log folder is not there"):
        StreamReader(options).latestOffset({}, ReadAllAvailable())


READERS = [
    ("log", "--max", 3),
    ("verify-crc",),
    ("sql", "select count(*) from messages"),
    ("export", "OUT"),
]


def placed(words: tuple[object, ...], folder: Path) -> tuple[object, ...]:
    return tuple(folder / "OUT" if word == "OUT" else word for word in words)


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_last_segment_that_is_a_link_to_nowhere_is_told(
    store_copy: StoreCopy, tmp_path: Path, words: tuple[object, ...]
) -> None:
    words = placed(words, tmp_path)
    root = store_copy("load-533", "clean")
    assert codes((*words, "-s", root))[0] == exit_codes.OK
    shutil.rmtree(tmp_path / "OUT", ignore_errors=True)
    last = sorted((root / paths.COMMITLOG).iterdir())[-1]
    last.unlink()
    last.symlink_to(tmp_path / "elsewhere")
    result = call(*words, "-s", root, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    assert "not read: a link that leads nowhere" in result.out


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_segment_that_another_folder_has_too_is_told(
    parted: tuple[Path, Path, Path], tmp_path: Path, words: tuple[object, ...]
) -> None:
    """The first one is read; whoever finds it damaged has to know of the other."""
    words = placed(words, tmp_path)
    root, second, config = parted
    segment = next(iter(second.iterdir()))
    shutil.copy(segment, root / paths.COMMITLOG / segment.name)
    result = call(*words, "-c", config, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    assert "not read: the same segment as commitlog/" in result.out


def replaced(path: Path, how: str) -> None:
    """Something else under the name of a file or a folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    match how:
        case "link":
            path.symlink_to(path.parent / "elsewhere")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "file":
            path.write_bytes(b"no folder")


@pytest.mark.product(4)
@pytest.mark.parametrize(
    "words",
    [("sql", 'select count(*) from "index"'), ("export", "OUT", "--what", "index"), ("info",)],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("how", ["short", "empty", "folder", "link", "pipe"])
def test_an_index_file_that_is_none_or_of_another_length_is_told(
    store_copy: StoreCopy, tmp_path: Path, how: str, words: tuple[object, ...]
) -> None:
    root = store_copy("load-533", "clean")
    file = min((root / paths.INDEX).iterdir())
    if how in ("short", "empty"):
        os.truncate(file, 5000 if how == "short" else 0)
    else:
        replaced(file, how)
    code, found = codes((*placed(words, tmp_path), "-s", root))
    assert (code, {"I005", "I006"} & set(found)) == (
        exit_codes.FINDINGS,
        {"I005" if how in ("short", "empty") else "I006"},
    )


@pytest.mark.parametrize(
    "words",
    [("sql", "select count(*) from queues"), ("export", "OUT", "--what", "queues"), ("lag",), ("info",)],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("how", ["file", "link"])
def test_queues_that_are_elsewhere_are_told(
    store_copy: StoreCopy, tmp_path: Path, how: str, words: tuple[object, ...]
) -> None:
    root = store_copy("load-533", "clean")
    replaced(root / paths.CONSUMEQUEUE, how)
    result = call(*placed(words, tmp_path), "-s", root, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    assert "S008" in result.out + result.err


@pytest.mark.parametrize(
    "words", [("sql", "select count(*) from queues"), ("export", "OUT", "--what", "queues")], ids=lambda words: words[0]
)
def test_entries_behind_a_queues_end_are_told(
    damageable: Callable[..., Damageable], tmp_path: Path, words: tuple[object, ...]
) -> None:
    store = damageable("load-533")
    assert codes((*placed(words, tmp_path / "whole"), "-s", store.root))[0] == exit_codes.OK
    store.set_entry("Calm_orders", 0, 10, (0, 0, 0))
    code, found = codes((*placed(words, tmp_path), "-s", store.root))
    assert (code, found) == (exit_codes.FINDINGS, ["Q008"])


def test_a_record_without_a_time_is_found_wherever_it_lies(damageable: Callable[..., Damageable]) -> None:
    store = damageable("load-533")
    number = next(n for n, m in enumerate(store.truth["messages"]) if m["phyOffset"] > 140_000)
    store.set_field(number, "store_timestamp_ms", 0)
    for condition in ("store_time < '2000-01-01'", "store_time = '1970-01-01'", "not store_time >= '2000-01-01'"):
        result = call("sql", f"select count(*) as n from messages where {condition}", "-s", store.root, "-o", "json")
        assert '"n": 1' in result.out, condition


def test_log_tells_a_bad_checksum_of_properties(store_copy: StoreCopy) -> None:
    root = store_copy("propcrc-533", "clean")
    assert codes(("log", "--no-body", "-s", root))[0] == exit_codes.OK
    segment = min((root / paths.COMMITLOG).iterdir())
    with segment.open("r+b") as file:
        file.seek(82)
        file.write(b"\x07")
    assert codes(("log", "--no-body", "-s", root)) == (exit_codes.FINDINGS, ["L011"])
