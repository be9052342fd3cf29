"""A task of an export has at most 512 MB resident, whatever its bodies are like."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.codec.compression import compress
from tests.export.test_rows import written
from tests.rmqctl.calls import call

MOST_BYTES: Final = 512_000_000
MIB: Final = 1 << 20
MEASURED: Final = """
import sys
from rmqctl.app import main
code = main(sys.argv[1:])
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(f"peak_kib {peak}", file=sys.stderr)
sys.exit(code)
"""
SETTLED: Final = """
import gc
from store_core.export.source.data_source import Part
assert list(Part(None).batches()) == []
print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000)
"""
Body = Callable[[int], tuple[bytes, int]]
NOISE: Final = os.urandom(8 * MIB)
# Text as a producer's library compresses it; noise, which it leaves alone; and what only somebody hostile sends.
TEXT: Final = compress((b'{"order":1,"lines":[]}' * 300_000)[: 4 * MIB])
ZEROS: Final = compress(bytes(64 * MIB))


def noise(i: int) -> tuple[bytes, int]:
    return NOISE[i * 4099 :][: 4 * MIB - 1000], 0


@pytest.mark.parametrize(
    ("body", "count"),
    [(noise, 40), (lambda _: TEXT, 100), (lambda _: ZEROS, 4)],
    ids=["large", "compressed", "inflates far"],
)
def test_large_bodies(body: Body, count: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, written(count, body=lambda i: body(i)[0], sys_flag=lambda i: body(i)[1]))
    done, resident_bytes = run("export", tmp_path / "out", "-s", root, "--jobs", 1, "-o", "json")
    assert done["rows"] == count
    assert resident_bytes < MOST_BYTES


@pytest.mark.product(rows_at_once=(400,))
@pytest.mark.parametrize("rows_at_once", [1, 40, 400, 3000])
def test_many_topics(rows_at_once: int, tmp_path: Path) -> None:
    """One row of each, or many, one topic behind the other."""
    root, count = tmp_path / "store", 80_000
    body = NOISE[:3000]
    write_log(root, written(count, body=lambda _: body, topic=lambda i: f"topic{i // rows_at_once}"))
    done, resident_bytes = run("export", tmp_path / "out", "-s", root, "--jobs", 1, "-o", "json")
    assert done["rows"] == count
    assert resident_bytes < MOST_BYTES


NAMES: Final = {
    "names that nobody has twice": (200_000, lambda i: {f"n{i:06}{j:02}": f"v{j}" for j in range(20)}),
    "thousands of keys": (4_500, lambda i: {"KEYS": " ".join(f"{(i * 7 + j) % 1000:03}" for j in range(7000))}),
}


@pytest.mark.product(1)
@pytest.mark.parametrize("name", NAMES)
def test_properties_that_are_all_of_a_record(name: str, tmp_path: Path) -> None:
    root, (count, properties) = tmp_path / "store", NAMES[name]
    write_log(root, written(count, topic=lambda _: "topic", properties=properties))
    done, resident_bytes = run("export", tmp_path / "out", "-s", root, "--jobs", 1, "-o", "json")
    assert done["rows"] == count
    assert resident_bytes < MOST_BYTES


@pytest.mark.product(1)
@pytest.mark.parametrize("topics", [1, 20])
def test_rows_of_a_topic_that_get_longer(topics: int, tmp_path: Path) -> None:
    """Many short ones and then long ones: what is cut by the number of rows is one part with nearly all of the bytes."""
    root, count = tmp_path / "store", 60_000
    records = written(
        count,
        body=lambda i: NOISE[: 4 * MIB - 2000] if i >= count - 40 else b"short",
        topic=lambda i: f"topic{i if i < topics else topics}",
    )
    write_log(root, records)
    done, resident_bytes = run("export", tmp_path / "out", "-s", root, "--jobs", 1, "-o", "json")
    assert done["rows"] == count
    assert resident_bytes < MOST_BYTES


def write_log(root: Path, records: Iterable[bytes]) -> None:
    (root / "commitlog").mkdir(parents=True)
    with (root / "commitlog" / f"{0:020d}").open("wb") as file:
        file.writelines(records)
        file.truncate(256 * MIB)


def run(*words: object) -> tuple[Any, int]:
    """What a command answers, and the most memory it had resident. What a parent's wait tells is no less than what that has."""
    done = call(*words, program=("-c", MEASURED))
    assert done.code == 0, done.err
    return done.json, int(done.err.split("peak_kib ")[1]) << 10


def test_what_a_task_of_spark_is_made_of_is_not_looked_through_for_garbage() -> None:
    pytest.importorskip("pyspark")
    assert subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, check=True).stdout == b"50000 True\n"
