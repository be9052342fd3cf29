"""Exports on a real YARN, by the command lines of docs/pipeline.md: the driver here, and the driver in a container."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.jars import NoBrokerError
from tests.conftest import DamagedStore, GoldenStore
from tests.export.clusters import SPARK, bare_python
from tests.export.exports import export_one, files_of
from tests.export.yarn import Yarn, yarn, yarn_jars
from tests.rmqctl.calls import ROOT

pytestmark = pytest.mark.cluster
SPLIT_SIZE = 100_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Yarn]:
    """Without a JDK and Maven the test is skipped, and fails under ``--no-skips``."""
    try:
        found = yarn_jars()
    except NoBrokerError as error:
        pytest.skip(str(error))
    (tmp_path / "yarn").mkdir()
    with yarn(tmp_path / "yarn", found) as started:
        yield started


def run(cluster: Yarn, words: list[str | Path], **environment: str) -> tuple[int, str]:
    """A command that finds YARN; exit code and what was said."""
    env = {**os.environ, **cluster.environment, **environment}
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_driver_here_and_the_driver_in_a_container(
    cluster: Yarn, golden: GoldenStore, damaged: DamagedStore, tmp_path: Path
) -> None:
    """Containers have nothing but Python. One test, since two might start two YARNs."""
    python = ("--conf", f"spark.pyspark.python={bare_python(tmp_path / 'bare')}")
    whole, harmed = golden("load-533"), damaged("load-533", "zero-page-mid")
    export_one(whole, tmp_path / "whole", split_size_bytes=SPLIT_SIZE)
    findings = export_one(harmed, tmp_path / "harmed", split_size_bytes=SPLIT_SIZE).findings

    def words(name: str, root: Path) -> list[str | Path]:
        return ["export", tmp_path / name, "-s", f"a={root}", "--split-size", str(SPLIT_SIZE)]

    here = [sys.executable, "-m", "rmqctl", *words("from-here", whole), "--spark", "--master", "yarn", "--pack-env"]
    code, said = run(cluster, [*here, *cluster.conf, *python], XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert code == 0, said
    assert "twin" not in said
    assert files_of(tmp_path / "from-here") == files_of(tmp_path / "whole")

    [archive] = (tmp_path / "cache" / "rmqctl").glob("environment-*.tar.gz")
    away = [SPARK / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", "cluster"]
    away += ["--archives", f"{archive}#rmqctl_env", "--conf", "spark.yarn.appMasterEnv.PYTHONPATH=rmqctl_env"]
    away += ["--conf", "spark.yarn.maxAppAttempts=1", *cluster.conf, *python]
    code, said = run(cluster, [*away, ROOT / "pyspark_rmqctl.py", *words("from-there", harmed)])
    assert (code, "User application exited with status 3" in said) == (1, True), said
    assert files_of(tmp_path / "from-there") == files_of(tmp_path / "harmed")

    [first, second] = sorted(cluster.applications(), key=lambda told: str(told["id"]))
    assert [first["finalStatus"], second["finalStatus"]] == ["SUCCEEDED", "FAILED"]
    shown = cluster.said(str(second["id"]))
    assert findings
    assert all(found.code in shown for found in findings), shown
    assert "twin" not in shown
