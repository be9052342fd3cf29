"""`rmqctl checkpoint`: what the checkpoint file says."""

from __future__ import annotations

from dataclasses import fields

from rmqctl.context import Context, exit_for_findings
from store_core.read.checkpoint import Checkpoint, read_checkpoint


def checkpoint(ctx: Context) -> int:
    """Show the checkpoint: up to which store times log, queues and index are known to be on disk.

    Example: rmqctl checkpoint -s /data/rocketmq/store
    """
    with ctx.open_store() as store:
        found = read_checkpoint(store.root)
    document = {field.name: getattr(found, field.name) for field in fields(Checkpoint) if field.name != "findings"}
    ctx.emit({**document, "min_timestamp_ms": found.min_timestamp_ms, "findings": found.findings})
    return exit_for_findings(found.findings)
