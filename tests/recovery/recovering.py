"""What a recovery must come to, held against the truth about the store before it was damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from store_core.broker.versions import Version
from store_core.check.store import check_store
from store_core.findings import Finding
from store_core.layout import paths, queue, record
from store_core.recovery.apply.apply import Applied, apply
from store_core.recovery.apply.undo import undo
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.lost_record import LostRun
from store_core.recovery.plans.plan import Plan
from store_core.recovery.prediction.predict import predict
from store_core.recovery.recover import Policy, Recovery, recover
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import differences
from tests.damage import Damageable, offset_in_record

SettingsOf = Callable[[str], Path]
DamageableOf = Callable[..., Damageable]

VERSIONS: Final = {"load-533": "5.3.3", "load-497": "4.9.7", "crash-533": "5.3.3"}
# Fields of the truth that say where a message is and what it is.
_QUEUED: Final = (0, 8)  # transaction types none and commit have a queue entry
_TRANSACTION_MASK: Final = 0xC

Place = tuple[str, int, int]  # topic, queue id, queue offset


@dataclass(frozen=True, slots=True)
class Opener:
    """How a store is opened: with the broker's own properties file, as a release."""

    config: Path | None
    version: str

    def recover(self, root: Path, policy: Policy = "keep", options: KeepOptions | None = None) -> Recovery:
        with Store.open(root, load_settings(self.config, root)) as store:
            return recover(store, policy, Version.parse(self.version), options)

    def predict(self, root: Path) -> dict[str, Any]:
        with Store.open(root, load_settings(self.config, root)) as store:
            return predict(store, Version.parse(self.version)).outcome.as_json()

    def check(self, root: Path) -> list[Finding]:
        with Store.open(root, load_settings(self.config, root)) as store:
            return check_store(store).findings


def log_bytes(root: Path) -> dict[int, bytes]:
    """Every segment by its start."""
    folder = root / paths.COMMITLOG
    return {int(p.name): p.read_bytes() for p in sorted(folder.iterdir()) if p.name.isdecimal() and p.is_file()}


def record_bytes(log: dict[int, bytes], message: dict[str, Any], segment_size_bytes: int) -> bytes:
    at = message["phyOffset"] % segment_size_bytes
    return log.get(message["phyOffset"] - at, b"")[at : at + message["storeSize"]]


@dataclass(frozen=True, slots=True)
class Harm:
    """What a damage did to the records of a store: told by bytes and truth alone."""

    intact: list[dict[str, Any]]
    harmed: list[dict[str, Any]]

    changed: list[dict[str, Any]]  # harmed only where no checksum and no length looks: still readable

    @property
    def lost_places(self) -> set[Place]:
        lost = [m for m in self.harmed if is_queued(m) and m not in self.changed]
        return {(m["topic"], m["queueId"], m["queueOffset"] + n) for m in lost for n in range(batch_size(m))}


def harm(golden: Path, damaged: Path, name: str) -> Harm:
    truth = stores.truth(name)
    size = int(truth["properties"]["mappedFileSizeCommitLog"])
    before, after = log_bytes(golden), log_bytes(damaged)
    found = Harm([], [], [])
    for message in truth["messages"]:
        was, now = record_bytes(before, message, size), record_bytes(after, message, size)
        (found.intact if was == now else found.harmed).append(message)
        if was != now and _without_unchecked(was, message) == _without_unchecked(now, message):
            found.changed.append(message)
    return found


def after_repairs(found: Harm, recovery: Recovery) -> Harm:
    """The harm that is left where damaged heads were repaired: those records are as they were."""
    repaired = {repair["phy_offset"] for repair in recovery.repaired}
    assert repaired <= {m["phyOffset"] for m in found.harmed}
    again = [m for m in found.harmed if m["phyOffset"] in repaired]
    intact = sorted([*found.intact, *again], key=lambda m: m["phyOffset"])
    return Harm(intact, [m for m in found.harmed if m not in again], [m for m in found.changed if m not in again])


def mended(
    golden: Path, root: Path, base: str, opener: Opener, options: KeepOptions | None = None
) -> tuple[Recovery, Harm]:
    """Carry out what recover plans for a damaged copy; gives its answer and the harm that is left."""
    found = harm(golden, root, base)
    recovery = opener.recover(root, options=options)
    apply_to(recovery, root)
    return recovery, after_repairs(found, recovery)


def _without_unchecked(data: bytes, message: dict[str, Any]) -> bytes | None:
    """A record without what recovery does not look at: own offset, store time, the properties' text."""
    if len(data) < message["storeSize"]:
        return None
    own, stored, text = (offset_in_record(message, f) for f in ("own_phy_offset", "store_timestamp_ms", "properties"))
    width = record.HEAD.field("own_phy_offset").size_bytes
    return data[:own] + data[own + width : stored] + data[stored + width : text]


def place(message: dict[str, Any]) -> Place:
    return message["topic"], message["queueId"], message["queueOffset"]


def batch_size(message: dict[str, Any]) -> int:
    """How many messages of a batch queue are in a record."""
    return int(message["properties"].get("INNER_NUM", 1))


def is_queued(message: dict[str, Any]) -> bool:
    return message["sysFlag"] & _TRANSACTION_MASK in _QUEUED


def places(runs: tuple[LostRun, ...]) -> set[Place]:
    """Every number that runs of lost messages name."""
    return {
        (run.topic, run.queue_id, number)
        for run in runs
        if run.topic is not None and run.queue_id is not None and run.first_queue_offset is not None
        for number in range(run.first_queue_offset, (run.last_queue_offset or 0) + 1)
    }


def assert_kept(golden: Path, mended: Path, name: str, kept: list[dict[str, Any]]) -> None:
    """Each of these messages stands where it stood, byte for byte, and its queue's entry still points to it."""
    truth = stores.truth(name)
    size = int(truth["properties"]["mappedFileSizeCommitLog"])
    before, after = log_bytes(golden), log_bytes(mended)
    queue_size = queue.rounded_file_size_bytes(int(truth["properties"]["mappedFileSizeConsumeQueue"]))
    queues: dict[tuple[str, int, int], bytes] = {}
    wrong = []
    for message in kept:
        if record_bytes(before, message, size) != record_bytes(after, message, size):
            wrong.append(("record", message["phyOffset"]))
        if is_queued(message):
            topic, queue_id, number = place(message)
            start, at = divmod(number * queue.ENTRY.size_bytes, queue_size)
            name = topic, queue_id, start * queue_size
            if name not in queues:
                path = mended / paths.CONSUMEQUEUE / topic / str(queue_id) / paths.segment_name(start * queue_size)
                queues[name] = path.read_bytes() if path.exists() else b""
            entry = queue.ENTRY.read(
                queues[name][at : at + queue.ENTRY.size_bytes].ljust(queue.ENTRY.size_bytes, b"\0")
            )
            if (entry["phy_offset"], entry["size_bytes"]) != (message["phyOffset"], message["storeSize"]):
                wrong.append((f"entry {topic}/{queue_id}/{number}", entry["phy_offset"]))
    assert not wrong, wrong[:10]


class _Planned(Protocol):
    @property
    def plan(self) -> Plan: ...


def apply_to(recovery: _Planned, root: Path) -> Applied | None:
    return apply(recovery.plan, root) if recovery.plan.steps else None


def recovered(opener: Opener, store: Damageable, golden: Path) -> Recovery:
    """Recovered to what stood before the damage, byte for byte, and undone again."""
    before = stores.snapshot(store.root)
    recovery = opener.recover(store.root)
    assert recovery.lost == ()
    applied = apply_to(recovery, store.root)
    assert applied is not None
    assert log_bytes(store.root) == log_bytes(golden)
    assert opener.recover(store.root).plan.steps == ()
    assert [f.code for f in opener.check(store.root) if f.severity != "info"] == []
    assert opener.predict(store.root) == recovery.after.as_json()
    undo(store.root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(store.root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []
    return recovery
