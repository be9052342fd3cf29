"""Real store code of one release that opens many stores in one JVM, several at a time: seconds a store become a fraction of one."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from tests import stores
from tests.broker import oracle

_TOLD: Final = "told\t"
# Some ten stores at a time, and as many on their way out: each holds room for its largest message.
_HEAP: Final = "1500m"
# What the store code logs while it scans the log: lines with the name of a segment, and marks of the kind of recovery.
_FROM, _NEXT, _LAST = "recover from this mapped file", "recover next physics file", "physics file"
_ABNORMAL: Final = re.compile(
    r"recover from this mapped file|recoverAbnormally|physics file end, .* pos=|recover physics file over"
)
_NORMAL: Final = re.compile(r"recoverNormally|recover last 3 physics file over")
_SEGMENT: Final = re.compile(r"/commitlog/(\d{20})")
_LOGBACK: Final = """<configuration><appender name="F" class="ch.qos.logback.core.FileAppender"><file>{log}</file>
<encoder><pattern>%t|%m%n</pattern></encoder></appender><root level="INFO"><appender-ref ref="F"/></root></configuration>"""


class ManyStores:
    """Opens copies of stores: ``submit`` some, then take ``answers`` as they come. A context manager; the JVM ends with it.

    ``start_ms``: how long a start may take before it counts as one that never returns.
    """

    def __init__(self, version: str, properties: str, folder: Path, *, threads: int = 8, start_ms: int = 8000) -> None:
        self.version = version
        self._folder = folder
        self._before: dict[str, dict[str, list[Any]]] = {}
        self._told: queue.Queue[str | None] = queue.Queue()
        self._log_lines: dict[str, list[str]] = defaultdict(list)
        self._log_read = 0
        folder.mkdir(parents=True)
        (folder / "broker.properties").write_text(oracle.for_every_release(properties))
        options: dict[str, object] = {
            "ha.port": 0,
            "start.millis": start_ms,
            "threads": threads,
            "entries": "true",
            "served": "true",
            "walk": "false",
            "deliver": "false",
            "stop": "false",
        }
        options["rmq.logback.configurationFile"] = folder / "logback.xml"  # where 5.x looks
        command = oracle.java_command(
            version, folder, *(f"-D{name}={value}" for name, value in options.items()), heap=_HEAP
        )
        self._log = folder / "store.log"
        (folder / "logback.xml").write_text(_LOGBACK.format(log=self._log))
        self._out = (folder / "out").open("wb")
        self._process = subprocess.Popen(
            ["nice", *command, "Oracles", str(folder / "broker.properties")],
            env=oracle.java_environment(folder),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._out,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def __enter__(self) -> ManyStores:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()

    def submit(self, name: str, root: Path, properties: str | None = None) -> None:
        """Let the release open a copy of the store at ``root``, with other properties than the usual ones. ``name``: any, but each once."""
        copy = stores.copy_store(root, self._folder / name / "store")
        self._before[name] = stores.contents(copy)
        assert self._process.stdin is not None
        job = [name, str(copy), str(self._folder / name / "answer.json")]
        if properties is not None:
            own = self._folder / name / "broker.properties"
            own.write_text(oracle.for_every_release(properties))
            job.append(str(own))
        self._process.stdin.write("\t".join(job) + "\n")
        self._process.stdin.flush()

    @property
    def waiting(self) -> int:
        """Stores that were submitted and not answered yet."""
        return len(self._before)

    def answer(self, timeout_seconds: float = 600) -> tuple[str, dict[str, Any]]:
        """The next store's name and outcome, as oracle.open_store gives it; beside it what the log told of recovery, and what is gone.

        ``deleted``: files that are not there any more when the start is over. ``scan``: ``recovery``, normal or abnormal, ``first_file`` and ``exception``; None where the release's log does not tell.
        """
        try:
            name = self._told.get(timeout=timeout_seconds)
        except queue.Empty:
            name = None
        assert name is not None, f"the JVM of {self.version} died, or hangs: {self._said()}"
        path = self._folder / name / "answer.json"
        outcome: dict[str, Any] = json.loads(path.read_text())
        before = self._before.pop(name)
        outcome.setdefault("afterStart", {"returned": False})
        after = outcome["afterStart"].get("filesAfterStart", outcome.pop("filesAfterLoad", ()))
        outcome["deleted"] = sorted(p for p in before if p not in after and p != "lock")
        outcome["scan"] = self._scan(name, sorted(p.split("/")[1] for p in before if p.startswith("commitlog/")))
        shutil.rmtree(path.parent, ignore_errors=True)  # what is left of the store may still make a file
        return name, outcome

    def answers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        while self.waiting:
            yield self.answer()

    def _listen(self, out: IO[str]) -> None:
        for line in out:
            if line.startswith(_TOLD):
                self._told.put(line.removeprefix(_TOLD).strip())
        self._told.put(None)

    def _said(self) -> str:
        return (self._folder / "out").read_text(errors="replace")[-3000:]

    def _scan(self, name: str, segments: list[str]) -> dict[str, str | None]:
        with self._log.open(errors="replace") as log:
            log.seek(self._log_read)
            for line in iter(log.readline, ""):
                thread, _, text = line.partition("|")
                if "exception" in text:
                    text += log.readline()  # what was thrown
                if "recover" in text or "exception" in text:
                    self._log_lines[thread].append(text)
            self._log_read = log.tell()
        lines = self._log_lines.pop(name, [])
        named = [(line, found[1]) for line in lines if (found := _SEGMENT.search(line))]
        first = next((segment for line, segment in named if _FROM in line), None)
        following = next((segment for line, segment in named if _NEXT in line), None)
        if first is None and following is not None:
            first = segments[segments.index(following) - 1]
        elif first is None:
            first = next((segment for line, segment in named if _LAST in line), None)
        kinds = {"abnormal": _ABNORMAL, "normal": _NORMAL}
        told = [kind for kind, mark in kinds.items() if any(mark.search(line) for line in lines)]
        thrown = next((line for line in lines if "exception" in line), None)
        return {"recovery": told[0] if told else None, "first_file": first, "exception": thrown}
