"""`rmqctl truncate`: cut the log at a record, and everything derived with it."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.context import Context, confirm
from rmqctl.mending import (
    ApplyOption,
    Carrying,
    SaveOption,
    at_work,
    conclude,
    cut_blocks,
)
from rmqctl.options import YesOption
from store_core.errors import UsageError

if TYPE_CHECKING:
    from store_core.storage.store import Store


def truncate(
    ctx: Context,
    phy_offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="Where a record starts; it and all after it go.")
    ],
    policy: Annotated[
        Literal["keep", "broker", "strict"] | None,
        typer.Option(
            "--policy",
            help="Ask before cutting more than `recover` with this policy would give up.",
        ),
    ] = None,
    yes: YesOption = False,
    apply: ApplyOption = False,
    save: SaveOption = None,
) -> int:
    """Cut the log at a record boundary, and with it queues, index, checkpoint and consumer progress.

    Nothing is changed without --apply; every removed byte is kept, and `rmqctl undo` brings it back. What goes is what was
    asked for; with --policy, a cut that goes further needs --yes: keep and strict give up nothing readable, broker only what
    a broker would throw away at its next start.

    Example: rmqctl truncate 567104 -s /data/rocketmq/store
    """
    from store_core.recovery.truncate import WALKS
    from store_core.recovery.truncate import truncate as plan_truncation

    settings = ctx.settings()
    with at_work(ctx, settings, apply=apply) as lock, ExitStack() as keep:
        if apply:
            settings.writable_outside_paths()
        store = keep.enter_context(ctx.open_store())
        kept_bytes = max(phy_offset - store.log.min_phy_offset, 0)
        with ctx.progress("truncate", WALKS * kept_bytes) as bar:
            result = plan_truncation(store, phy_offset, keep=keep, on_progress=bar)
        if apply and policy is not None and result.lost:
            readable = (result.losses.given_up_messages or 0) if result.losses is not None else 0
            _ask(ctx, store, policy, phy_offset, readable, yes=yes)
        return conclude(
            ctx,
            settings,
            result,
            Carrying(apply=apply, save=save, lock=lock, keep=keep),
            main="lost",
            blocks=partial(cut_blocks, "end of the log afterwards", "max_phy_offset"),
        )


def _ask(ctx: Context, store: Store, policy: str, phy_offset: int, readable: int, *, yes: bool) -> None:
    """Have somebody say yes to a cut below what the policy allows. Raises UsageError otherwise."""
    what = f"{readable} readable messages go"
    if policy == "broker":
        from store_core.recovery.prediction.predict import predict

        end = predict(store).outcome.max_phy_offset
        if end is not None and phy_offset >= end:
            return
        what += f", and a broker would keep all up to {end}"
    if not confirm(ctx, f"{what}. Go on?", yes):
        raise UsageError("not confirmed", to_do="nothing was changed")
