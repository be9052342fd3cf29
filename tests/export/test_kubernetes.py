"""An export by the command line of docs/pipeline.md for Kubernetes: what Spark asks the API server for, and that such executors do the work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from store_core.export.runners.java import java_home
from tests.conftest import GoldenStore
from tests.export.clusters import CONF, SPARK, bare_python
from tests.export.exports import export_one, files_of
from tests.export.kubernetes import Kubernetes, kubernetes
from tests.export.spark_java import SHORT_LIVED
from tests.rmqctl.calls import ROOT

pytestmark = pytest.mark.cluster
SPLIT_SIZE = 100_000
IMAGE = "spark:4.3.0-python3"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Kubernetes]:
    (tmp_path / "pods").mkdir()
    home = java_home()
    with kubernetes(tmp_path / "pods", str(home / "bin" / "java") if home else "java") as started:
        yield started


def submit(cluster: Kubernetes, words: list[str | Path], **environment: str) -> tuple[int, str]:
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": SHORT_LIVED, **environment}
    if (home := java_home()) is not None:
        env["JAVA_HOME"] = str(home)
    conf = {
        "spark.kubernetes.container.image": IMAGE,
        "spark.kubernetes.namespace": "data",
        "spark.executor.instances": "1",
        "spark.executor.cores": "2",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.kubernetes.executor.enableApiWatcher": "false",  # it asks often instead
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.executor.missingPodDetectDelta": "60s",
    }
    told = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [SPARK / "bin" / "spark-submit", "--master", cluster.url, *told, *words]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_driver_here(cluster: Kubernetes, golden: GoldenStore, tmp_path: Path) -> None:
    """Executors have nothing but Python."""
    export_one(golden("load-533"), tmp_path / "local", split_size_bytes=SPLIT_SIZE)
    python = ["--conf", f"spark.pyspark.python={bare_python(tmp_path / 'bare')}"]
    python += ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    small = [word for setting in CONF for word in ("--conf", setting)]
    export = [
        "export",
        tmp_path / "out",
        "--pack-env",
        "-s",
        f"a={golden('load-533')}",
        "--split-size",
        str(SPLIT_SIZE),
    ]
    cache = str(tmp_path / "cache")
    code, said = submit(cluster, [*small, *python, ROOT / "pyspark_rmqctl.py", *export], XDG_CACHE_HOME=cache)
    assert code == 0, f"{said}\n{cluster.said()}"
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")
    [pod] = [thing for thing in cluster.posted if thing["kind"] == "Pod"]
    assert pod["metadata"]["namespace"] == "data"
    assert pod["spec"]["containers"][0]["image"] == IMAGE


def test_the_driver_in_a_pod(cluster: Kubernetes) -> None:
    """What is asked for, of an image in which rmqctl is installed; nobody runs it."""
    words = ["--deploy-mode", "cluster", "--conf", "spark.kubernetes.submission.waitAppCompletion=false"]
    export = ["export", "s3://lake/orders", "-s", "broker-a=s3://backup/broker-a/store"]
    program = "local:///opt/rmqctl/pyspark_rmqctl.py"
    code, said = submit(cluster, [*words, program, *export])
    assert code == 0, said
    [pod] = [thing for thing in cluster.posted if thing["kind"] == "Pod"]
    [container] = pod["spec"]["containers"]
    assert (pod["metadata"]["labels"]["spark-role"], container["image"]) == ("driver", IMAGE)
    assert container["args"][0] == "driver"
    assert container["args"][-5:] == [program, *export]
    settings = [thing["data"] for thing in cluster.posted if thing["kind"] == "ConfigMap"]
    assert any("spark.kubernetes.namespace=data" in told.get("spark.properties", "") for told in settings)
