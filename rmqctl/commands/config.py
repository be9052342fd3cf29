"""`rmqctl config`: what the broker's JSON config files say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from rmqctl.context import Context, exit_for_findings
from rmqctl.output.cells import Column
from rmqctl.output.document import Block, Findings, Table
from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.read.config import files_as_json, plain
from store_core.storage.config_files import ConfigFiles, read_config
from store_core.storage.store import Store

_FILE_FIELDS: Final = ("file", "source", "broker_loads", "entries", "size_bytes", "modified_timestamp_ms")
_FILE_COLUMNS: Final = (*_FILE_FIELDS[:-1], Column("modified_timestamp_ms", "time", drop=1))
_TOPIC_COLUMNS: Final = (
    Column("topic", folds_words=True),
    "read_queues",
    "write_queues",
    "perm",
    "order",
    Column("attributes", drop=1),
)
_GROUP_COLUMNS: Final = (
    Column("group", folds_words=True),
    "consume_enable",
    "consume_message_orderly",
    "retry_queues",
    "retry_max_times",
)


def config(ctx: Context) -> int:
    """Show the config files, typed: topics, groups, progress, delay levels, filters, timers.

    A file that is missing, empty or broken is read from its .bak, as by a broker.

    Example: rmqctl config -s /data/rocketmq/store -o json
    """
    with ctx.open_store() as store:
        found = read_config(store.root)
        refused = _refused_by_named(store)
    files = files_as_json(found)
    for name in refused:
        files[PurePosixPath(name).name]["broker_loads"] = False
    findings = (*found.findings, *refused.values())
    rows = [{"file": name, **content} for name, content in files.items()]
    ctx.output.emit(
        {"files": files, "findings": findings},
        rows=rows,
        fields=_FILE_FIELDS,
        blocks=lambda: _blocks(found, rows, findings),
    )
    return exit_for_findings(findings)


def _refused_by_named(store: Store) -> dict[str, Finding]:
    """Return, by file, what the release that --broker-version names fails to load although others load it."""
    from store_core.broker.config_load import CONFIG_FILES_OF_5, DELAY_PROGRESS
    from store_core.broker.config_load import read_config as load
    from store_core.broker.versions import Version, behaviour_of

    version = store.settings.broker_version
    if version is None:
        return {}
    refused = {}
    for name in (f"{paths.CONFIG}/{file}" for file in (*CONFIG_FILES_OF_5, DELAY_PROGRESS)):
        read = load(store, name.removeprefix(f"{paths.CONFIG}/"), behaviour_of(Version.parse(version)))
        if read.unusable and read.why:
            text = f"{name} and its {paths.BAK_SUFFIX} copy: {read.why}: broker {version} refuses to start"
            refused[name] = finding("P004", text, file=name)
    return refused


def _blocks(found: ConfigFiles, rows: list[dict[str, Any]], findings: Iterable[Finding]) -> Iterator[Block]:
    yield Table(rows, _FILE_COLUMNS, "Files", empty="no config files")
    if topics := found.topics.value["topics"]:
        yield Table((plain(topic) for topic in topics.values()), _TOPIC_COLUMNS, "Topics")
    if groups := found.subscription_groups.value["groups"]:
        yield Table((plain(group) for group in groups.values()), _GROUP_COLUMNS, "Groups")
    yield Findings(findings)
