"""`rmqctl truncate`: cut the log at a record, and everything derived with it."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.blocks import Facts, Table
from rmqctl.context import Context
from rmqctl.mending import LOST_COLUMNS, ApplyOption, SaveOption, at_work, carry_out, plan_blocks, with_few_keys


def truncate(
    ctx: Context,
    phy_offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="Where a record starts; it and all behind go.")
    ],
    apply: ApplyOption = False,
    save: SaveOption = None,
) -> int:
    """Cut the log at a record boundary, and with it queues, index, checkpoint and consumer progress.

    Nothing is changed without --apply; every removed byte is kept, and `rmqctl undo` brings it back.

    Example: rmqctl truncate 567104 -s /data/rocketmq/store
    """
    from store_core.mend.truncate import WALKS
    from store_core.mend.truncate import truncate as plan_truncation

    settings = ctx.settings()
    with at_work(ctx, settings, apply=apply) as lock:
        if apply:
            settings.writable_outside_paths()
        with ctx.open_store() as store:
            kept_bytes = max(phy_offset - store.log.min_phy_offset, 0)
            with ctx.progress("truncate", WALKS * kept_bytes) as bar:
                result = plan_truncation(store, phy_offset, on_progress=bar)
        document = {
            "store": str(settings.root),
            "plan": result.plan.summary(),
            "after": result.after.as_json(),
            "lost": [run.as_json() for run in result.lost],
            "findings": list(result.findings),
        }
        code = carry_out(
            ctx,
            settings,
            result.plan,
            document,
            lock=lock,
            apply=apply,
            save=save,
            found_something=bool(result.plan.steps),
        )
        lost = Table(with_few_keys(document["lost"]), LOST_COLUMNS, "What goes", empty="no message goes")
        end = Facts({"end of the log afterwards": result.after.max_phy_offset})
        ctx.emit(document, rows="lost", blocks=lambda: (lost, end, *plan_blocks(document)))
        return code
