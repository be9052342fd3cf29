"""`rmqctl expire`: remove the oldest segments of the log, as a broker does."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from rmqctl.context import Context
from rmqctl.mending import (
    ApplyOption,
    Carrying,
    SaveOption,
    at_work,
    conclude,
    cut_blocks,
)
from rmqctl.options import read_size


def expire(
    ctx: Context,
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than",
            metavar="HOURS",
            min=0,
            help="Remove segments last written this long ago (the broker's fileReservedTime, else 72).",
        ),
    ] = None,
    free: Annotated[
        str | None,
        typer.Option(
            "--free",
            metavar="SIZE",
            callback=read_size,
            help="Remove as many more as hold this many bytes, as a broker does on a full disk.",
        ),
    ] = None,
    apply: ApplyOption = False,
    save: SaveOption = None,
) -> int:
    """Remove the oldest segments of the log, and the queue and index files that lead to them alone, as a broker does.

    A broker removes segments by the time they were last written, oldest first, at most up to the last but one. Nothing is
    changed without --apply. The removed files are kept, and use the disk, until `rmqctl undo ID --forget`; before that
    `rmqctl undo ID --apply` brings them back.

    Example: rmqctl expire --free 20GiB -s /data/rocketmq/store
    """
    from store_core.recovery.expire import expire as plan_expiry

    settings = ctx.settings()
    with at_work(ctx, settings, apply=apply) as lock, ExitStack() as keep:
        store = keep.enter_context(ctx.open_store())
        with ctx.progress("expire", store.log.size_bytes) as bar:
            result = plan_expiry(store, hours=older_than, free_bytes=int(free or 0), on_progress=bar)
        return conclude(
            ctx,
            settings,
            result,
            Carrying(apply=apply, save=save, lock=lock, keep=keep),
            main="lost",
            blocks=partial(cut_blocks, "start of the log afterwards", "min_phy_offset"),
        )
