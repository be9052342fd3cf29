"""`rmqctl rebuild`: build derived files again from the log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from rmqctl.context import Context
from rmqctl.mending import ApplyOption, Carrying, SaveOption, at_work, conclude
from rmqctl.options import WALKERS, JobsOption


def rebuild(
    ctx: Context,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="queues, index, checkpoint, topics or all.")],
    jobs: JobsOption = WALKERS,
    apply: ApplyOption = False,
    save: SaveOption = None,
) -> int:
    """Build queues, index, checkpoint or missing topics from the log; files that are already right stay untouched.

    Nothing is changed without --apply; every replaced file is kept, and `rmqctl undo` brings it back.

    Example: rmqctl rebuild queues -s /data/rocketmq/store --apply
    """
    from store_core.recovery.rebuild import WALKS
    from store_core.recovery.rebuild import rebuild as plan_rebuilding

    settings = ctx.settings()
    with at_work(ctx, settings, apply=apply) as lock, ExitStack() as keep:
        store = keep.enter_context(ctx.open_store())
        with ctx.progress("rebuild", WALKS * store.log.size_bytes) as bar:
            result = plan_rebuilding(store, what, jobs=jobs, keep=keep, on_progress=bar)
        return conclude(ctx, settings, result, Carrying(apply=apply, save=save, lock=lock, keep=keep, jobs=jobs))
