"""`rmqctl dump-cq`: the entries of consume queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.context import Context
from rmqctl.messages import note_unknown_topics, shown_or_counted
from rmqctl.options import complete_topics, refuse_backwards
from rmqctl.times import format_time
from store_core.errors import FailedError, UsageError
from store_core.layout.paths import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from store_core.findings import Finding
    from store_core.kernel.text import RowBatch
    from store_core.read.dump import QueueDump
    from store_core.storage.store import Store


def dump_cq(
    ctx: Context,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Topic.", autocompletion=complete_topics)] = None,
    queue_id: Annotated[int | None, typer.Argument(metavar="QUEUE_ID", min=0, help="Queue id.")] = None,
    from_: Annotated[int | None, typer.Option("--from", min=0, metavar="N", help="First queue offset.")] = None,
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="N", help="Queue offset to stop before.")] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="Add what the log holds there, and compare.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Every queue, or every queue of TOPIC.")] = False,
) -> int:
    """Show the entries of a consume queue as they are stored, from the first file's start to the queue's end.

    Example: rmqctl dump-cq orders 0 --from 100 --to 110 --resolve
    """
    from store_core.kernel.text import one_by_one
    from store_core.read.dump import dump_entries, fields_of
    from store_core.read.types import queue_faults

    if all_ == (topic is not None and queue_id is not None):
        raise UsageError(
            "dump-cq takes a topic and a queue id, or --all", to_do="give TOPIC QUEUE_ID, TOPIC --all, or --all"
        )
    refuse_backwards(from_, to, ("--from", "--to"))
    findings: list[Finding] = []
    with ctx.open_store() as store:
        queues = _queues(store, topic, queue_id)
        if topic is not None and not queues:
            note_unknown_topics(ctx, store, (topic,))

        def rows() -> Iterator[dict[str, Any] | RowBatch]:
            for queue in queues:
                told = dump_entries(queue, first=from_, end=to, resolve=resolve, findings=findings)
                is_delay = queue.topic == SCHEDULE_TOPIC and ctx.output.format in ("table", "plain", "github")
                yield from (_with_due_time(row, ctx.options.zone) for row in one_by_one(told)) if is_delay else told

        fields = fields_of(queues, resolve=resolve)
        if all_ and not store.queues_in_rocksdb:  # what is no folder has no queues to show
            findings += queue_faults(store)
        ctx.output.emit({"entries": rows(), "findings": lambda: findings}, rows="entries", fields=fields)
    return shown_or_counted(ctx, findings)


def _with_due_time(row: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """A delayed message's entry for people: its tags code is when the message is due."""
    return {**row, "tags_code": format_time(row["tags_code"], zone)} if row["tags_code"] > 0 else row


def _queues(store: Store, topic: str | None, queue_id: int | None) -> Sequence[QueueDump]:
    from store_core.read.dump import QueueDump, all_queues
    from store_core.read.pull import open_queue

    if topic is None or queue_id is None:
        return all_queues(store, topic)
    queue = open_queue(store, topic, queue_id)
    if queue is None:
        raise FailedError(
            f"no queue {queue_id} of topic {topic!r}", path=str(store.root), to_do="see `rmqctl info` for the queues"
        )
    return [QueueDump(topic, queue_id, queue)]
