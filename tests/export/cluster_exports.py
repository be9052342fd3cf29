"""``rmqctl export --spark`` on a cluster of tests, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.export.clusters import CONF, Cluster, command_of, descendants, wait_until
from tests.rmqctl.calls import ROOT

SPLIT_SIZE = 10_000  # about a hundred tasks


def words_of(spark: Cluster, root: Path | str, dest: Path | str, split_size: int = SPLIT_SIZE) -> list[str]:
    """``export --spark`` on the cluster."""
    conf = [word for setting in CONF for word in ("--conf", setting)]
    words = ["export", str(dest), "-s", f"a={root}", "--spark", "--master", spark.url]
    return [*words, "--split-size", str(split_size), *conf]


class Export:
    """``rmqctl export --spark`` as a process of its own."""

    def __init__(
        self, spark: Cluster, root: Path | str, dest: Path | str, *words: str, split_size: int = SPLIT_SIZE
    ) -> None:
        command = [sys.executable, "-m", "rmqctl", *words_of(spark, root, dest, split_size), *words]
        self._dest, self._said = Path(dest), ""
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.end()

    @property
    def driver(self) -> int:
        return next(pid for pid in descendants(self.process.pid) if "spark_job" in command_of(pid))

    def has_written(self, count: int) -> None:
        """Wait until so many files of splits are there, of which none counts yet."""
        wait_until(lambda: self.written >= count or self.process.poll() is not None)
        assert self.process.poll() is None, self.end()

    @property
    def written(self) -> int:
        return len(list(self._dest.rglob("*.parquet")))

    def end(self) -> tuple[int, str]:
        """Exit code and what was said."""
        if self.process.stderr is not None and not self.process.stderr.closed:
            self._said = self.process.communicate(timeout=240)[1]
        return self.process.returncode, self._said


def ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found
