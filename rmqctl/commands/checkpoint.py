"""`rmqctl checkpoint`: what the checkpoint file says, and a plan to set it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.context import Context, exit_for_findings
from rmqctl.mending import ApplyOption, Carrying, SaveOption, at_work, conclude
from store_core.errors import UsageError
from store_core.read.checkpoint import Checkpoint, read_checkpoint

if TYPE_CHECKING:
    from rmqctl.output.document import Block
    from store_core.findings import Finding

_TIME_FIELDS = "_timestamp_ms"


def checkpoint(
    ctx: Context,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set a field, such as physic_msg_timestamp=-15m; times as ISO 8601, epoch ms or ages.",
        ),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Set it to what log, queues and index say.")] = False,
    apply: ApplyOption = False,
    save: SaveOption = None,
) -> int:
    """Show the checkpoint: up to which store times log, queues and index are known to be on disk. Or plan to set it.

    Example: rmqctl checkpoint -s /data/rocketmq/store
    """
    if set_ or rebuild:
        if set_ and rebuild:
            raise UsageError("--set and --rebuild exclude each other", to_do="give one of them")
        return _change(ctx, set_ or [], apply=apply, save=save)
    if apply or save is not None:
        raise UsageError("there is nothing to carry out", to_do="give --set FIELD=VALUE or --rebuild")
    with ctx.open_store() as store:
        found = read_checkpoint(store.root)
    document = {field.name: getattr(found, field.name) for field in fields(Checkpoint) if field.name != "findings"}
    document["min_timestamp_ms"] = found.min_timestamp_ms
    ctx.output.emit({**document, "findings": found.findings}, blocks=lambda: _blocks(document, found.findings))
    return exit_for_findings(found.findings)


def _blocks(document: dict[str, int], findings: Iterable[Finding]) -> Iterator[Block]:
    from rmqctl.output.document import Facts, Findings

    is_time = {name: name.endswith(_TIME_FIELDS) for name in document}
    yield Facts({name: "not set" if is_time[name] and not value else value for name, value in document.items()})
    yield Findings(findings)


def _change(ctx: Context, words: list[str], *, apply: bool, save: Any) -> int:
    values = dict(_parsed(ctx, word) for word in words)
    settings = ctx.settings()
    with at_work(ctx, settings, apply=apply) as lock, ExitStack() as keep:
        from store_core.recovery.rebuild import WALKS, rebuild, set_checkpoint

        store = keep.enter_context(ctx.open_store())
        with ctx.progress("rebuild", WALKS * store.log.size_bytes) as bar:
            result = set_checkpoint(store, values) if values else rebuild(store, "checkpoint", on_progress=bar)
        return conclude(ctx, settings, result, Carrying(apply=apply, save=save, lock=lock, keep=keep))


def _parsed(ctx: Context, word: str) -> tuple[str, int]:
    """A field and its value. Raises UsageError."""
    from store_core.layout.checkpoint import CHECKPOINT

    name, equals, text = word.partition("=")
    if not equals or not text:
        raise UsageError(f"{word!r} sets nothing", to_do="give --set FIELD=VALUE")
    if f"{name}_ms" in CHECKPOINT.names:  # as it is shown
        name = f"{name}_ms"
    if name.endswith(_TIME_FIELDS):
        import time

        from rmqctl.times import parse_time

        return name, parse_time(text, time.time_ns() // 1_000_000, ctx.options.zone)
    try:
        return name, int(text)
    except ValueError:
        if name not in CHECKPOINT.names:
            raise UsageError(
                f"the checkpoint has no field {name!r}", to_do=f"one of {', '.join(CHECKPOINT.names)}"
            ) from None
        raise UsageError(f"{text!r} is no number", to_do=f"give {name} as a byte offset") from None
