"""`rmqctl apply`: carry out a saved plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmqctl.context import Context, exit_for_findings
from rmqctl.mending import STEP_FIELDS, apply_plan, at_work, closing_check, plan_blocks


def apply(
    ctx: Context, plan_file: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan saved with --save.")]
) -> int:
    """Carry out a plan that was saved with --save, if the store is still as it was.

    Example: rmqctl apply plan.json -s /data/rocketmq/store
    """
    from store_core.mend.builders import load_outlook, load_plan

    settings = ctx.settings()
    plan = load_plan(plan_file)
    outlook = load_outlook(plan_file)
    with at_work(ctx, settings, apply=True) as lock:
        ctx.refuse_no_store()
        undo_id = apply_plan(ctx, settings, plan, lock) if plan.steps else None
        findings = closing_check(ctx, settings)
        document = {
            "store": str(settings.root),
            "plan": plan.summary(),
            **outlook,
            "findings": findings,
            "applied": True,
            "undo_id": undo_id,
        }
        ctx.output.emit(
            document, rows=plan.summary()["steps"], fields=STEP_FIELDS, blocks=lambda: plan_blocks(document)
        )
        return exit_for_findings(findings)
