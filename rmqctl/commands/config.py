"""`rmqctl config`: what the broker's JSON config files say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmqctl.blocks import Block, Findings, Table
from rmqctl.context import Context, exit_for_findings
from store_core.read.config import files_as_json, plain
from store_core.storage.config_files import ConfigFiles, read_config

_FILE_FIELDS = ("file", "source", "broker_loads", "entries", "size_bytes", "modified_timestamp_ms")
_TOPIC_FIELDS = ("topic", "read_queues", "write_queues", "perm", "order", "attributes")
_GROUP_FIELDS = ("group", "consume_enable", "consume_message_orderly", "retry_queues", "retry_max_times")


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
    yield Table(rows, _FILE_FIELDS, "Files", empty="no config files")
    if topics := found.topics.value.topics:
        yield Table((plain(topic) for topic in topics.values()), _TOPIC_FIELDS, "Topics")
    if groups := found.subscription_groups.value.groups:
        yield Table((plain(group) for group in groups.values()), _GROUP_FIELDS, "Groups")
    yield Findings(found.findings)
