"""`rmqctl info`: what a store holds and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rmqctl.context import Context, exit_for_findings
from rmqctl.output.cells import Column
from rmqctl.output.document import Block, Facts, Findings, Table, Text

if TYPE_CHECKING:
    from store_core.storage.store import Store

_FACTS: Final = ("path", "last_exit")
_UNKNOWN: Final = "unknown"
_QUEUE_COLUMNS: Final = (
    "topic",
    "queue_id",
    Column("type", drop=3),
    Column("files", "number", drop=2),
    Column("size_bytes", "size", drop=1),
    "min_offset",
    "max_offset",
)
_INDEX_COLUMNS: Final = (
    "file",
    "used_entries",
    Column("entries", "number", drop=1),
    Column("begin_timestamp_ms", "time", drop=2),
    "end_timestamp_ms",
    "end_phy_offset",
)


def info(ctx: Context) -> int:
    """Show what a store holds: log, queues, index, groups and checkpoint, which brokers may have written it, how the last
    one ended, and whether one would start on it.

    Example: rmqctl info -s /data/rocketmq/store -o json
    """
    with ctx.open_stores() as stores:
        documents = [_document(name, store) for name, store in stores]
    ctx.output.emit(
        {"stores": documents},
        rows="stores",
        blocks=lambda: (block for document in documents for block in _blocks(document)),
    )
    return exit_for_findings(finding for document in documents for finding in document["findings"])


def _document(name: str, store: Store) -> dict[str, Any]:
    from store_core.read.info import describe_store, last_exit
    from store_core.read.rules import rules_of
    from store_core.storage.live import is_live

    described = describe_store(store, rules_of(store))
    findings = described.pop("findings")
    if is_live(store.root).live:
        from store_core.findings import finding

        findings.append(finding("S002", "its lock is held or its files are open for writing"))
    return {
        "store": name,
        "path": str(store.root),
        "last_exit": last_exit(store),
        **_version(store),
        **described,
        "findings": findings,
    }


def _version(store: Store) -> dict[str, Any]:
    """Show which releases may have written the store, and whether a broker would start on it: the worst among them counts. None where that
    depends on RocksDB databases."""
    from store_core.broker.detect_version import evidence_of
    from store_core.broker.load import load
    from store_core.broker.versions import Version, groups_of
    from store_core.read.info import databases

    found = evidence_of(store)
    named = store.settings.broker_version
    possible = (Version.parse(named),) if named else found.possible
    assumed, refusal = possible[-1], ""
    for behaviour, releases in groups_of(possible):
        reason = load(store, behaviour).refusal
        if reason or not refusal:
            assumed, refusal = releases[-1], reason
    version = {"assumed": str(assumed), "possible": [str(v) for v in possible], "evidence": list(found.evidence)}
    starts = False if refusal else None if databases(store) else True
    return {"broker_version": version, "would_start": {"starts": starts, "reason": refusal or None}}


def _blocks(document: dict[str, Any]) -> Iterator[Block]:
    facts = {key: document[key] for key in _FACTS}
    version, start = document["broker_version"], document["would_start"]
    facts["broker_version"] = f"{version['assumed']} (possible: {', '.join(version['possible'])})"
    facts["would_start"] = {True: "yes", None: _UNKNOWN}.get(start["starts"], f"no: {start['reason']}")
    yield Facts(facts | document["commitlog"], document["store"])
    yield _table(document["queues"], _QUEUE_COLUMNS, "Queues", "no queues")
    yield Table(document["index"], _INDEX_COLUMNS, "Index", "no index files")
    yield _table(document["groups"], ("group", "topic", "queues", "lag"), "Groups", "no groups")
    yield Facts(
        {name: "not set" if value is None else value for name, value in document["checkpoint"].items()}, "Checkpoint"
    )
    if document["databases"]:
        yield Table(document["databases"], ("folder", "holds", "rocksdb_version"), "RocksDB databases (not read)")
    for note in document["notes"]:
        yield Text(f"note: {note}")
    yield Findings(document["findings"])


def _table(rows: list[Any] | None, columns: tuple[str | Column, ...], title: str, empty: str) -> Table:
    return Table(rows or [], columns, title, _UNKNOWN if rows is None else empty)
