"""Asks the real store code of a RocketMQ release about a store: what it does on a start, and what it then serves."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests import stores
from tests.broker import jars
from tests.ports import free_port

# Releases that the tests open stores with; 4.3.0 and 5.1.4 work as well.
VERSIONS: Final = tuple(os.environ.get("RMQCTL_BROKER_VERSIONS", "4.9.7,5.3.3,5.4.0,5.5.1").split(","))

# Old releases reach into the JDK, which Java 17 allows only when told.
_PACKAGES: Final = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
_OPENS: Final = [a for p in _PACKAGES for a in ("--add-opens", f"java.base/{p}=ALL-UNNAMED")] + [
    a for p in _PACKAGES for a in ("--add-exports", f"java.base/{p}=ALL-UNNAMED")
]
_LOGBACK: Final = """<configuration><appender name="F" class="ch.qos.logback.core.FileAppender"><file>{log}</file>
<encoder><pattern>%d %p %c{{0}} - %m%n</pattern></encoder></appender><root level="WARN"><appender-ref ref="F"/></root></configuration>"""


def look(phy_offset: int) -> str:
    """The message at a physical offset, or None."""
    return f"look\t{phy_offset}"


def pull(topic: str, queue_id: int, offset: int, max_messages: int = 32) -> str:
    """getMessage without a filter: status, nextBeginOffset, minOffset, maxOffset, messages."""
    return f"pull\t{topic}\t{queue_id}\t{offset}\t{max_messages}"


def keys(topic: str, key: str, max_messages: int = 64, begin_ms: int = 0, end_ms: int = (1 << 63) - 1) -> str:
    """queryMessage by key: indexLastPhyOffset, indexLastTimestamp, messages."""
    return f"keys\t{topic}\t{key}\t{max_messages}\t{begin_ms}\t{end_ms}"


def time_lookup(topic: str, queue_id: int, timestamp_ms: int, boundary: str | None = None) -> str:
    """getOffsetInQueueByTime: queueOffset."""
    return f"time\t{topic}\t{queue_id}\t{timestamp_ms}\t{boundary or ''}"


def put(topic: str, queue_id: int, body: str, properties: Mapping[str, str] | None = None) -> str:
    """putMessage: status, phyOffset, storeSize, queueOffset, storeTimestamp."""
    pairs = [text for pair in (properties or {}).items() for text in pair]
    return "\t".join(["put", topic, str(queue_id), body, *pairs])


def expire(hours: int, *, at_once: bool = False) -> str:
    """The store's clean-up of segments written last ``hours`` ago, of all but the last ``at_once``: segments, minPhyOffset."""
    return f"expire\t{hours * 3_600_000}\t{str(at_once).lower()}"


def java_command(version: str, home: Path, *jvm: str, heap: str = "400m") -> list[str]:
    """How to start a JVM with the release's jars; everything it logs goes below ``home``."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for part in ("broker", "namesrv", "tools", "client"):
        (home / "conf" / f"logback_{part}.xml").write_text(_LOGBACK.format(log=home / f"{part}.log"))
    (home / "logback.xml").write_text(_LOGBACK.format(log=home / "all.log"))
    quick = [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        f"-Xmx{heap}",
        "-XX:MaxDirectMemorySize=600m",
    ]
    where = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", f"-Drocketmq.client.logRoot={home}"]
    known = ["-Duser.timezone=UTC", "-Dfile.encoding=UTF-8", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99"]
    classpath = f"{home}:{jars.classpath(version)}"
    return ["java", *_OPENS, *quick, *where, *known, *jvm, "-cp", classpath]


def for_every_release(properties: str) -> str:
    """The properties with the file sizes under the names, too, that 4.3 knows them by."""
    lines = properties.splitlines()
    old = [line.replace("mapped", "maped", 1) for line in lines if line.startswith("mappedFileSize")]
    return "".join(f"{line}\n" for line in [*lines, *old])


def java_environment(home: Path) -> dict[str, str]:
    return {**os.environ, "ROCKETMQ_HOME": str(home)}


def open_store(
    version: str,
    root: Path,
    properties: str,
    *,
    requests: Iterable[str] = (),
    start_ms: int = 12_000,
    entries: bool = False,
    messages: bool = False,
    stop: bool = True,
    folder: Path | None = None,
    timeout_seconds: float = 90,
) -> dict[str, Any]:
    """Let a release load, start and stop a copy of the store at ``root``; ``properties`` as stores.properties_text gives them.

    Gives an outcome as in tests/data (README.md there). Beside it: ``root``, the copy as the release left it (below ``folder``); ``answers`` to
    the requests, in order, asked after the start; with ``entries`` every queue's entries; with ``messages`` every record of the log after load. ``start_ms`` of
    0 only loads; without ``stop`` the JVM is killed in the end, which saves 2 s and leaves a crashed store. Raises jars.NoBrokerError where no release can run, AssertionError where the JVM died.
    """
    work = Path(tempfile.mkdtemp(prefix=f"oracle-{version}-", dir=folder))
    copy = stores.copy_store(root, work / "store")
    (work / "broker.properties").write_text(for_every_release(properties))
    (work / "requests").write_text("".join(f"{request}\n" for request in requests), encoding="utf-8")
    options = (
        f"-Dha.port={free_port()}",
        f"-Dstart.millis={start_ms}",
        f"-Dentries={str(entries).lower()}",
        f"-Dmessages={str(messages).lower()}",
        f"-Dstop={str(stop).lower()}",
    )
    files = [str(p) for p in (copy, work / "broker.properties", work / "requests", work / "answer.json")]
    command = [*java_command(version, work, *options), "Oracle", *files]
    before = stores.contents(copy)
    with (work / "out").open("wb") as out:
        subprocess.run(command, env=java_environment(work), cwd=work, stdout=out, stderr=out, timeout=timeout_seconds)
    answer = work / "answer.json"
    assert answer.exists(), f"the JVM of {version} died: {(work / 'out').read_text(errors='replace')[-3000:]}"
    outcome: dict[str, Any] = json.loads(answer.read_text())
    outcome["root"] = str(copy)
    outcome["diffAfterLoad"] = _difference(before, outcome.pop("filesAfterLoad"))
    if "filesAfterShutdown" in outcome.get("afterStart", {}):
        after_start = outcome["afterStart"]
        after_start["diffAfterShutdown"] = _difference(before, after_start.pop("filesAfterShutdown"))
    return outcome


def _difference(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> dict[str, Any]:
    return {
        "created": {path: entry for path, entry in after.items() if path not in before},
        "deleted": sorted(path for path in before if path not in after and path != "lock"),
        "changed": {path: entry for path, entry in after.items() if path in before and entry != before[path]},
    }


def steady(outcome: dict[str, Any]) -> dict[str, Any]:
    """The part of an outcome that is the same in every run: no clock, no durations, no names and bytes that hang on them."""
    kept = ("abortPresent", "checkpointAsFound", "asFound", "fatal")
    result = {key: outcome[key] for key in kept if key in outcome}
    result["loads"] = outcome["load"]["ok"]
    result["files"] = _steady_files(outcome["diffAfterLoad"] or {})
    for stage in ("afterLoad", "afterStart"):
        if stage in outcome:
            state = {k: v for k, v in outcome[stage].items() if k not in _UNSTEADY}
            state["indexFiles"] = [{k: v for k, v in file.items() if k != "file"} for file in state["indexFiles"]]
            result[stage] = state
    return result


# The checkpoint is flushed, and dispatched bytes are counted, whenever a background thread comes by.
_UNSTEADY: Final = (
    "millis",
    "checkpoint",
    "dispatchBehindBytes",
    "flushedWhere",
    "committedWhere",
    "diffAfterShutdown",
)


def _steady_files(difference: dict[str, Any]) -> dict[str, Any]:
    """Names only; an index file that was made in the run is named after the clock."""
    created = ["index/*" if path.startswith("index/") else path for path in difference.get("created", {})]
    return {
        "created": sorted(created),
        "deleted": difference.get("deleted", []),
        "changed": sorted(difference.get("changed", {})),
    }
