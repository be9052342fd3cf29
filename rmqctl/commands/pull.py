"""`rmqctl pull`: messages of a queue as a broker would answer."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.context import Context
from rmqctl.mending import report_finished
from rmqctl.messages import (
    MESSAGE_COLUMNS,
    NoBody,
    QueueIdArgument,
    RawBody,
    Time,
    is_for_people,
    preview,
    told,
    view_of,
)
from rmqctl.options import TopicArgument
from store_core.errors import UsageError

if TYPE_CHECKING:
    from store_core.engine.live_store import LiveStore
    from store_core.findings import Finding
    from store_core.read.queue import BatchQueue, Queue
    from store_core.storage.store import Store


def pull(
    ctx: Context,
    topic: TopicArgument,
    queue_id: QueueIdArgument,
    offset: Annotated[int | None, typer.Option("--offset", metavar="N", help="Queue offset to start at.")] = None,
    time: Time = None,
    boundary: Annotated[
        Literal["lower", "upper"] | None,
        typer.Option("--boundary", help="With --time: first entry at or after it, or last at or before it."),
    ] = None,
    max_: Annotated[int, typer.Option("--max", min=1, metavar="N", help="At most so many messages.")] = 32,
    tag: Annotated[str | None, typer.Option("--tag", metavar="EXPR", help="Tags, as in 'A || B'.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Start at this group's progress.")
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Store what comes next as the progress of --group, as a broker does.")
    ] = False,
    raw_body: RawBody = False,
    no_body: NoBody = False,
) -> int:
    """Read messages of a queue by a broker's rules. Without an offset or a time: from the group's progress if --group is
    given, else from the queue's start. An inner batch is shown as its messages. In a batch queue a time is looked up as a
    broker does it there: at or after the last entry's time it is that entry's first message, never the queue's end.

    With --commit no broker may run on the store, and it must have been stopped cleanly.

    Example: rmqctl pull orders 0 --time 2026-11-21T02:11:00Z --max 10
    """
    from store_core.read.pull import open_queue
    from store_core.read.pull import pull as pull_messages
    from store_core.read.rules import rules_of
    from store_core.read.tags import TagFilter

    view = view_of(raw_body, no_body)
    if offset is not None and time is not None:
        raise UsageError("--offset and --time exclude each other", to_do="give one of them")
    if boundary is not None and time is None:
        raise UsageError("--boundary needs --time", to_do="give a time")
    if commit and group is None:
        raise UsageError("--commit needs --group", to_do="name the group whose progress it is")
    findings: list[Finding] = []
    with ExitStack() as opened:
        live = opened.enter_context(_open_for_writing(ctx)) if commit else None
        store = live.store if live is not None else opened.enter_context(ctx.open_store())
        queue = open_queue(store, topic, queue_id, rules_of(store))
        if queue is None:
            ctx.note(f"there is no queue {queue_id} of topic {topic!r}")
        start = offset if offset is not None else _start(ctx, store, queue, topic, queue_id, time, boundary, group)
        result = pull_messages(queue, topic, queue_id, start, limit=max_, tags=TagFilter.parse(tag))
        findings += result.findings
        messages = [view.as_json(message, findings) for message in result.messages]
        if live is not None and group is not None and queue is not None:
            from store_core.engine.progress import commit_offset

            commit_offset(live, group, topic, queue_id, result.next_begin_offset)
            if result.next_begin_offset < result.offset:
                ctx.note(f"group {group!r} goes on at {result.next_begin_offset}, which is before {result.offset}")
    document = {
        "topic": result.topic,
        "queue_id": result.queue_id,
        "offset": result.offset,
        "status": result.status,
        "next_begin_offset": result.next_begin_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
        "messages": messages,
    }
    facts = tuple(key for key in document if key != "messages")
    shown = {**document, "messages": [preview(row) for row in messages]} if is_for_people(ctx) else document
    ctx.output.emit(shown, rows="messages", columns=MESSAGE_COLUMNS, fields=view.fields, facts=facts)
    return told(ctx, findings)


def _open_for_writing(ctx: Context) -> AbstractContextManager[LiveStore]:
    from store_core.engine.live_store import open_for_writing

    ctx.refuse_remote()
    return open_for_writing(ctx.settings(), on_settled=partial(report_finished, ctx))


def _start(
    ctx: Context,
    store: Store,
    queue: Queue | BatchQueue | None,
    topic: str,
    queue_id: int,
    time: int | None,
    boundary: Literal["lower", "upper"] | None,
    group: str | None,
) -> int | None:
    """The queue offset to start at; None for the queue's begin."""
    if time is not None and queue is not None:
        from store_core.read.time_lookup import offset_by_time

        return offset_by_time(queue, time, boundary)
    if group is None or time is not None:
        return None
    from store_core.read.progress import read_progress

    progress = read_progress(store.root).offset_of(group, topic, queue_id)
    if progress is None:
        ctx.note(f"group {group!r} has no progress in this queue; starting at the queue's start")
    return progress
