"""A real YARN on loopback: a ResourceManager and a NodeManager of Hadoop's, each in a process of its own.

Their jars are PySpark's own Hadoop client, and what it lacks through Maven. The default file system is this machine's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.broker.jars import NoBrokerError, dependency, fetched, missing_tools
from tests.export.clusters import SPARK, descendants, kill, wait_until
from tests.export.spark_java import SHORT_LIVED
from tests.ports import free_port

_BOUNCY_CASTLE: Final = "1.82"
_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 180
_QUICK: Final = {  # heartbeats and pauses, which are made for thousands of machines
    "spark.yarn.report.interval": "200ms",
    "spark.yarn.scheduler.heartbeat.interval-ms": "200",
    "spark.yarn.scheduler.initial-allocation.interval": "100ms",
}


@dataclass(frozen=True)
class Yarn:
    """``environment`` is what makes Spark find it, ``conf`` settings for small and quick jobs on it."""

    folder: Path
    web_port: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HADOOP_CONF_DIR": str(self.folder / "conf"),
            "JAVA_HOME": str(_java_home()),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
        }

    @property
    def conf(self) -> list[str]:
        small = dict.fromkeys(("spark.driver.memory", "spark.executor.memory", "spark.yarn.am.memory"), "512m")
        here = {f"spark.{whose}.SPARK_LOCAL_IP": _HOST for whose in ("executorEnv", "yarn.appMasterEnv")}
        places = {
            "spark.yarn.jars": f"local:{SPARK}/jars/*",
            "spark.yarn.stagingDir": f"file:{self.folder}/staging",
        }
        quick = dict.fromkeys(
            [f"spark.{whose}.extraJavaOptions" for whose in ("driver", "executor", "yarn.am")], SHORT_LIVED
        )
        settings = {
            **small,
            **here,
            **places,
            **quick,
            **_QUICK,
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
        }
        return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

    def applications(self) -> list[dict[str, Any]]:
        """What YARN tells of the applications it has had."""
        return list((self._told("apps")["apps"] or {}).get("app", []))

    def nodes(self) -> list[dict[str, Any]]:
        with suppress(OSError):
            return list((self._told("nodes")["nodes"] or {}).get("node", []))
        return []

    def said(self, application: str) -> str:
        """All that the processes of an application have printed."""
        logs = sorted((self.folder / "logs" / application).rglob("std*"))
        return "\n".join(f"{log.parent.name} {log.name}:\n{log.read_text(errors='replace')}" for log in logs)

    def _told(self, what: str) -> Any:
        with urllib.request.urlopen(f"http://{_HOST}:{self.web_port}/ws/v1/cluster/{what}", timeout=20) as answer:
            return json.load(answer)


@contextmanager
def yarn(folder: Path, jars: Path) -> Iterator[Yarn]:
    """Started on enter, ended on leaving with all that it started. ``jars``: those of ``yarn_jars``."""
    path = f"{folder / 'conf'}:{jars}/*:{SPARK}/jars/*"
    cluster = Yarn(folder, _write_settings(folder))
    env = {**os.environ, "JAVA_HOME": str(_java_home())}
    env.pop("PYTHONPATH", None)  # containers have what they are given, not what the tests have
    daemons: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            command = ["java", *SHORT_LIVED.split(), "-Xmx256m", f"-Dhadoop.log.dir={folder}", "-cp", path]
            command += [f"org.apache.hadoop.yarn.server.{name}"]
            with (folder / f"{name}.log").open("wb") as log:
                daemons[name] = subprocess.Popen(
                    command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        wait_until(
            lambda: bool(_gone(daemons) or [node for node in cluster.nodes() if node["state"] == "RUNNING"]),
            _START_SECONDS,
        )
        assert not _gone(daemons), "\n".join((folder / f"{name}.log").read_text()[-2000:] for name in _gone(daemons))
        yield cluster
    finally:
        below = [pid for daemon in daemons.values() for pid in descendants(daemon.pid)]
        for daemon in daemons.values():
            daemon.terminate()
        for daemon in daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(15)
            daemon.kill()
            daemon.wait()
        for pid in below:
            kill(pid, signal.SIGKILL)


def _gone(daemons: dict[str, subprocess.Popen[bytes]]) -> list[str]:
    return [name for name, daemon in daemons.items() if daemon.poll() is not None]


def yarn_jars() -> Path:
    """What PySpark's Hadoop lacks of YARN's own side, of the same release. Raises NoBrokerError."""
    if missing := missing_tools():
        raise NoBrokerError(f"YARN needs a JDK and Maven; not on PATH: {', '.join(missing)}")
    [client] = (SPARK / "jars").glob("hadoop-client-api-*.jar")
    version = re.sub(r"^hadoop-client-api-|\.jar$", "", client.name)
    server = dependency("org.apache.hadoop", "hadoop-client-minicluster", version, alone=True)
    return fetched(f"yarn-{version}", server, dependency("org.bouncycastle", "bcpkix-jdk18on", _BOUNCY_CASTLE))


def _java_home() -> Path:
    java = shutil.which("java")
    assert java is not None  # or there would be no jars
    return Path(os.path.realpath(java)).parents[1]


def _write_settings(folder: Path) -> int:
    """Files of settings in ``conf``; gives the port at which it can be asked."""
    port = free_port(*range(1, 8))
    places = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    own = ("address", "localizer.address", "webapp.address")
    addresses = [f"resourcemanager.{place}" for place in places] + [f"nodemanager.{place}" for place in own]
    settings = {
        **{f"yarn.{name}": f"{_HOST}:{port + number}" for number, name in enumerate(addresses)},
        **{f"yarn.{whose}.{what}": _HOST for whose in ("resourcemanager", "nodemanager") for what in ("hostname", "bind-host")},
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        # A disk that is nine tenths full would do no more; the checker looks at it once even where it is disabled.
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.nodemanager.resource.memory-mb": "4096",
        "yarn.nodemanager.resource.cpu-vcores": "8",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.capacity": "100",
        "yarn.scheduler.capacity.root.default.capacity": "100",
    }  # fmt: skip
    conf = folder / "conf"
    conf.mkdir()
    (conf / "yarn-site.xml").write_text(_as_xml(settings))
    (conf / "core-site.xml").write_text(_as_xml({"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")}))
    return port + places.index("webapp.address")


def _as_xml(settings: dict[str, str]) -> str:
    rows = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    return f"<configuration>{''.join(rows)}</configuration>\n"
