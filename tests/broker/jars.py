"""Jars through Maven, those of a RocketMQ release with everything they need first of all, and our Java sources compiled against them.

Kept from run to run in ``$RMQCTL_TEST_CACHE`` (default ``~/.cache/rmqctl-tests``), one folder a release.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "oracle"
_ARTIFACTS: Final = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools")
# Of 5.5.1 the registry has only some artifacts; the others change nothing that a store sees, and come from the release before.
_OF_STORES: Final = ("rocketmq-broker", "rocketmq-store", "rocketmq-common", "rocketmq-remoting")
_MISSING: Final = ("namesrv", "tools", "client", "srvutil", "filter", "auth")
_IN_PARTS: Final = {"5.5.1": "5.5.0"}
_TRIES: Final = 4
_FETCH_SECONDS: Final = 600

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rmqctl</groupId><artifactId>oracle</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "{exclusions}</dependency>"
)
_ALONE: Final = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class NoBrokerError(Exception):
    """This machine cannot run a real broker, nor YARN: no JDK, no Maven, or Maven gets nothing."""


def missing_tools() -> list[str]:
    """Programs that real brokers need and that are not on PATH."""
    return [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]


def jars(version: str) -> Path:
    """Folder with all jars of a release; fetched once. Raises NoBrokerError."""
    if missing := missing_tools():
        raise NoBrokerError(f"real brokers need a JDK and Maven; not on PATH: {', '.join(missing)}")
    return fetched(version, *(dependency("org.apache.rocketmq", artifact, its) for artifact, its in _parts(version)))


def _parts(version: str) -> list[tuple[str, str]]:
    """Artifacts that make a release, each with its version."""
    other = _IN_PARTS.get(version)
    if other is None:
        return [(artifact, version) for artifact in _ARTIFACTS]
    missing = [(f"rocketmq-{name}", other) for name in _MISSING]
    return [*((artifact, version) for artifact in _OF_STORES), *missing]


def dependency(group: str, artifact: str, version: str, *, alone: bool = False) -> str:
    """What to fetch, in Maven's words; ``alone``: without what it needs."""
    return _DEPENDENCY.format(group=group, artifact=artifact, version=version, exclusions=_ALONE if alone else "")


def fetched(name: str, *dependencies: str) -> Path:
    """Folder with jars and what they need, kept under a name; fetched once. Raises NoBrokerError."""
    folder = cache() / name
    with locked(folder):
        if not (folder / "complete").exists():
            _fetch(name, folder, "".join(dependencies))
            (folder / "complete").touch()
    return folder / "jars"


def classpath(version: str) -> str:
    """Class path of a release's jars with our compiled sources (tests/broker/oracle) in front."""
    found = jars(version)
    return f"{_compiled(version, found)}:{found}/*"


def cache() -> Path:
    """Where things that were fetched are kept from run to run."""
    named = os.environ.get("RMQCTL_TEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "rmqctl-tests"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, for test workers side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "busy").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(name: str, folder: Path, dependencies: str) -> None:
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
    if said := trouble_of(command, folder, folder / "jars"):
        raise NoBrokerError(f"Maven cannot get the jars of {name}: {said}")


def trouble_of(command: list[str], folder: Path, result: Path) -> str:
    """Have a client fetch ``result``, again where the registry does not answer; what it said last where it never came."""
    said = ""
    for attempt in range(_TRIES):
        time.sleep(5 * attempt)
        shutil.rmtree(result, ignore_errors=True)
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            said = f"no answer within {_FETCH_SECONDS} s"
            continue
        if done.returncode == 0:
            return ""
        said = (done.stdout + done.stderr)[-2000:] or f"it ended with {done.returncode}"
    return said


def _compiled(version: str, found: Path) -> Path:
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    classes = cache() / version / f"classes-{digest[:16]}"
    with locked(classes.parent):
        if not classes.exists():
            making = classes.with_suffix(".making")
            command = ["javac", "-nowarn", "-Xlint:none", "-cp", f"{found}/*", "-d", str(making), *map(str, sources)]
            subprocess.run(command, check=True, timeout=120)
            making.rename(classes)
    return classes
