"""`rmqctl trace`: one message's way through a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from rmqctl.context import Context
from rmqctl.messages import told
from rmqctl.output.cells import Column
from rmqctl.output.document import Block, Table, Text
from rmqctl.times import format_time
from store_core.read.message_json import MessageView

if TYPE_CHECKING:
    from store_core.read.trace import Way

_STEPS: Final = (
    Column("store_timestamp_ms", "time", "stored"),
    Column("what"),
    Column("place", folds_words=True),
    Column("why", folds_words=True),
)
_GROUPS: Final = (
    Column("group", folds_words=True),
    Column("place", folds_words=True),
    Column("next_offset"),
    Column("consumed"),
)
_NOW: Final = (Column("now", folds_words=True),)
_FIELDS: Final = (
    "message",
    "step",
    "unique_key",
    "what",
    "topic",
    "queue_id",
    "queue_offset",
    "phy_offset",
    "size_bytes",
    "store_timestamp_ms",
    "store_time",
    "why",
    "state",
    "due_timestamp_ms",
    "due_time",
    "reconsume_times",
    "prepared_transaction_offset",
    "offset_msg_id",
    "crc",
    "groups",
    "properties",
)


def trace(
    ctx: Context,
    key: Annotated[
        str,
        typer.Argument(
            metavar="UNIQUE_KEY|KEY", help="A unique key, a user key, or the offset message id of any of its records."
        ),
    ],
    max_: Annotated[int, typer.Option("--max", min=1, metavar="N", help="The newest so many messages.")] = 10,
    source: Annotated[
        Literal["auto", "index", "scan"],
        typer.Option("--source", help="Exact from index and log, from the index alone, or from the log alone."),
    ] = "auto",
) -> int:
    """Show a message's way: half, op, delay, timer, retry and dead-letter topics in log order, why it went there, and which
    consumer groups have had it at each place. A user key may be that of several messages.

    Example: rmqctl trace K1001 -s /data/rocketmq/store
    """
    from store_core.read.trace import trace as follow

    with ctx.open_store() as store:
        found = follow(store, key, most=max_, source=source)
    if not found.ways:
        ctx.note(f"no message has the key {key!r}")
    if found.left_out:
        ctx.note(f"older messages have the key {key!r} too; --max shows more")
    findings = list(found.findings)
    view = MessageView("none")
    for step in (step for way in found.ways for step in way.steps):
        view.as_json(step.message, findings)
    steps = [row for number, way in enumerate(found.ways, 1) for row in _rows(ctx, number, way)]
    messages = [
        {"message": number, "unique_key": way.unique_key, "keys": list(way.keys), "outcome": list(way.outcome)}
        for number, way in enumerate(found.ways, 1)
    ]
    document = {"key": key, "source": found.source, "messages": messages, "steps": steps}
    ctx.output.emit(document, rows="steps", fields=_FIELDS, blocks=lambda: _blocks(ctx, found.ways))
    return told(ctx, findings)


def _rows(ctx: Context, number: int, way: Way) -> Iterator[dict[str, Any]]:
    for step, each in enumerate(way.steps, 1):
        row = {"message": number, "step": step, "unique_key": way.unique_key, **each.as_json()}
        due_ms = each.due_timestamp_ms
        row["store_time"] = format_time(each.message.store_timestamp_ms, ctx.options.zone)
        row["due_time"] = None if due_ms is None else format_time(due_ms, ctx.options.zone)
        yield {field: row[field] for field in _FIELDS}


def _blocks(ctx: Context, ways: tuple[Way, ...]) -> Iterator[Block]:
    if not ways:
        yield Text("nothing to show")
    for number, way in enumerate(ways, 1):
        rows = list(_rows(ctx, number, way))
        for row in rows:
            row["place"] = f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}"
            until = f" until {row['due_time']}" if row["state"] == "waiting" and row["due_time"] else ""
            row["why"] += f"; {row['state'].replace('_', ' ')}{until}" if row["state"] else ""
        keys = f", keys {' '.join(way.keys)}" if way.keys else ""
        yield Table(rows, _STEPS, title=f"{way.unique_key or 'no unique key'}{keys}")
        groups = [{**group, "place": row["place"]} for row in rows for group in row["groups"]]
        if groups:
            yield Table(groups, _GROUPS, title="Consumer groups")
        yield Table([{"now": line} for line in way.outcome], _NOW)
