"""The real broker's store code in a JVM of its own: makes stores, and takes part in contests."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.closing import Closing
from tests.broker import jars, oracle
from tests.ports import free_port

RELEASE: Final = "5.3.3"
PROPERTIES: Final = "timerWheelEnable=false\nenableDLegerCommitLog=false\n"  # everything else: a broker's defaults
_SOURCES: Final = Path(__file__).parent / "java"
# The tests' JVM is made to start quickly; a broker is made to run quickly.
_AS_A_BROKER: Final = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g")
_HEAP: Final = "2g"
_LONGEST_RUN_SECONDS: Final = 3600


def is_available() -> bool:
    """Whether this machine can run the real store code."""
    try:
        jars.jars(RELEASE)
    except jars.NoBrokerError:
        return False
    return True


def make(root: Path, *, log_bytes: int, body_bytes: int, topics: int, queues: int, keys: int) -> int:
    """Let the real store code fill a new store; gives the number of messages. Raises RuntimeError where it fails."""
    return int(_told("made ", "Maker", root, log_bytes, body_bytes, topics, queues, keys)[0])


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a broker took to load a store and to build what follows from its log; ``load``: the part before its start."""

    seconds: float
    cpu_seconds: float
    load_seconds: float
    load_cpu_seconds: float


def recover(root: Path, release: str = RELEASE, properties: str = PROPERTIES) -> Recovered:
    """Have the real code of a release recover a store, in a JVM that has just started."""
    return Recovered(*map(float, _told("recovered ", "Recovery", root, release=release, properties=properties)))


def _told(
    start: str, main: str, root: Path, *numbers: int, release: str = RELEASE, properties: str = PROPERTIES
) -> list[str]:
    """The words behind ``start`` of the line in which one of our Java programs tells its result."""
    with tempfile.TemporaryDirectory(prefix="rmqctl-benchmark-") as folder:
        home = Path(folder)
        done = subprocess.run(
            [*_java(home, release=release), main, str(root), str(_properties(home, properties)), *map(str, numbers)],
            env=oracle.java_environment(home),
            capture_output=True,
            text=True,
            timeout=_LONGEST_RUN_SECONDS,
            check=False,
        )
    told = [line.removeprefix(start).split() for line in done.stdout.splitlines() if line.startswith(start)]
    if not told:
        raise RuntimeError(f"the broker's store code told nothing: {(done.stdout + done.stderr)[-2000:]}")
    return told[0]


class Contestant(Closing):
    """A loaded store of the real code that answers questions (java/Contestant.java), and what its start took."""

    def __init__(self, root: Path, *, serve: bool = True, properties: str = PROPERTIES) -> None:
        """``serve``: start the store, so that it answers more than scans. ``properties``: the broker's."""
        self._home = tempfile.TemporaryDirectory(prefix="rmqctl-contestant-")
        home = Path(self._home.name)
        self._process = subprocess.Popen(
            [
                *_java(home, f"-Dserve={str(serve).lower()}"),
                "Contestant",
                str(root),
                str(_properties(home, properties)),
            ],
            env=oracle.java_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.load_milliseconds = int(self._line("ready ")[0])

    def ask(self, *words: object) -> list[str]:
        """The words of the answer. Raises RuntimeError where there is none."""
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = self._line("")
        if answer[:1] == ["error"]:
            raise RuntimeError(f"the broker's store code failed: {' '.join(answer)}")
        return answer

    def _line(self, start: str) -> list[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # the store's own code may say something, too
            if line.startswith(start):
                return line.removeprefix(start).split()
        raise RuntimeError("the broker's store code has died")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._home.cleanup()


def _properties(home: Path, text: str = PROPERTIES) -> Path:
    path = home / "broker.properties"
    path.write_text(text)
    return path


def _java(home: Path, *system: str, release: str = RELEASE) -> Sequence[str]:
    options = (*_AS_A_BROKER, *system, f"-Dha.port={free_port()}")
    *command, classpath = oracle.java_command(release, home, *options, heap=_HEAP)
    return [*command, f"{_compiled(release)}:{classpath}"]


def _compiled(release: str) -> Path:
    """Folder with this folder's Java classes, compiled against the release and the tests' Java classes."""
    sources = sorted(_SOURCES.glob("*.java" if release == RELEASE else "Recovery.java"))
    classpath = jars.classpath(release)
    digest = hashlib.sha256(classpath.encode() + b"".join(s.read_bytes() for s in sources)).hexdigest()[:16]
    classes = jars.jars(release).parent / f"benchmarks-{digest}"
    if not classes.exists():
        making = classes.with_suffix(".making")
        subprocess.run(
            ["javac", "-nowarn", "-Xlint:none", "-cp", classpath, "-d", str(making), *map(str, sources)], check=True
        )
        making.rename(classes)
    return classes
