"""`rmqctl config`: what the broker's JSON config files say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rmqctl.blocks import Block, Findings, Table
from rmqctl.cells import Column
from rmqctl.context import Context, exit_for_findings
from store_core.read.config import files_as_json, plain
from store_core.storage.config_files import ConfigFiles, read_config

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
    files = files_as_json(found)
    rows = [{"file": name, **content} for name, content in files.items()]
    ctx.output.emit(
        {"files": files, "findings": found.findings},
        rows=rows,
        fields=_FILE_FIELDS,
        blocks=lambda: _blocks(found, rows),
    )
    return exit_for_findings(found.findings)


def _blocks(found: ConfigFiles, rows: list[dict[str, Any]]) -> Iterator[Block]:
    yield Table(rows, _FILE_COLUMNS, "Files", empty="no config files")
    if topics := found.topics.value.topics:
        yield Table((plain(topic) for topic in topics.values()), _TOPIC_COLUMNS, "Topics")
    if groups := found.subscription_groups.value.groups:
        yield Table((plain(group) for group in groups.values()), _GROUP_COLUMNS, "Groups")
    yield Findings(found.findings)
