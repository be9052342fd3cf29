"""`rmqctl lag`: how far consumer groups are behind."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from rmqctl.context import Context
from rmqctl.messages import Topics, note_unknown_topics, told
from rmqctl.output.cells import Column

_COLUMNS: Final = (
    Column("group", folds_words=True),
    Column("topic", folds_words=True),
    Column("queue_id"),
    Column("offset"),
    Column("min_offset", drop=2),
    Column("max_offset", drop=1),
    Column("lag"),
)


def lag(
    ctx: Context,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="Only this group; repeatable.")
    ] = None,
    topic: Topics = None,
) -> int:
    """Show the lag of consumer groups: their progress, the queue's ends, and the messages between.

    Example: rmqctl lag --group billing -o json
    """
    from store_core.read.progress import Lag, lags, read_progress
    from store_core.read.pull import require_queue_files
    from store_core.read.rules import rules_of
    from store_core.read.types import queue_faults

    with ctx.open_store() as store:
        require_queue_files(store)
        faults = list(queue_faults(store))
        progress = read_progress(store.root)
        note_unknown_topics(ctx, store, topic or ())
        for unknown in sorted(set(group or ()) - {row.group for row in progress.rows}):
            ctx.note(f"group {unknown!r} has no progress in this store")
        wanted = progress.only(frozenset(group or ()), frozenset(topic or ()))
        rows = [row.as_json() for row in lags(store, wanted, rules_of(store))]
    fields = [field.name for field in dataclasses.fields(Lag)]
    ctx.output.emit({"groups": rows}, rows="groups", columns=_COLUMNS, fields=fields)
    return told(ctx, [*faults, *progress.findings])
