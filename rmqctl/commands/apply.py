"""`rmqctl apply`: carry out a saved plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.context import Context
from rmqctl.mending import STEP_FIELDS, apply_plan, at_work, closing_check, exit_after_apply, plan_blocks
from rmqctl.output.document import Block
from rmqctl.verdict import verdict_blocks, verdict_document

if TYPE_CHECKING:
    from store_core.recovery.plans.plan import Plan
    from store_core.recovery.plans.plan_json import MadeWith
    from store_core.storage.settings import Settings


def apply(
    ctx: Context, plan_file: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan saved with --save.")]
) -> int:
    """Carry out a plan that was saved with --save, if the store is still as it was.

    The plan knows its store and the configuration it was made with; -s, -c and --commitlog name others.

    Example: rmqctl apply plan.json -s /data/rocketmq/store
    """
    from store_core.recovery import keep_steps, rebuild, recover, truncate  # noqa: F401  # they register a plan's builders
    from store_core.recovery.plans.plan_json import load_made_with, load_outlook, load_plan, load_prospect
    from store_core.recovery.verdict import Prospect, verdict_after

    plan = load_plan(plan_file)
    settings = _settings(ctx, plan, load_made_with(plan_file))
    outlook, prospect = load_outlook(plan_file), Prospect.from_json(load_prospect(plan_file))
    with at_work(ctx, settings, apply=True) as lock:
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
        if prospect is not None:
            document["verdict"] = verdict_document(ctx, settings, verdict_after(prospect, findings))
        ctx.output.emit(document, rows=plan.summary()["steps"], fields=STEP_FIELDS, blocks=lambda: _blocks(document))
        return exit_after_apply(findings)


def _blocks(document: dict[str, Any]) -> Iterator[Block]:
    """Show the result as `recover --apply` does: the verdict comes last."""
    yield from plan_blocks(document)
    if verdict := document.get("verdict"):
        yield from verdict_blocks(verdict, f"Verdict: {verdict['level']}")


def _settings(ctx: Context, plan: Plan, made_with: MadeWith) -> Settings:
    """The plan's own store and configuration, each unless the user names another now."""
    from store_core.storage.settings import load_settings

    named, options = ctx.store, ctx.options
    if named is None and options.config is None:
        ctx.note(f"the plan is for {plan.store}")
    return load_settings(
        options.config,
        named.path if named is not None else Path(plan.store),
        commitlog=[*options.commitlog, *map(Path, made_with.commitlog)],
        broker_version=options.broker_version or made_with.broker_version,
        values=None if options.config is not None else made_with.values,
    )
