"""`rmqctl undo`: bring back what a mending command changed."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqctl import exit_codes
from rmqctl.blocks import Table, Text
from rmqctl.context import Context
from rmqctl.mending import ApplyOption
from rmqctl.options import YesOption
from store_core.errors import UsageError

_CHANGE_COLUMNS = ("id", "state", "kind", "policy", "steps", "made_at_timestamp_ms")


def undo(
    ctx: Context,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Which change; the newest if none is named.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the changes that can be undone, newest first.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop the kept bytes: the change can never be undone.")
    ] = False,
    apply: ApplyOption = False,
    yes: YesOption = False,
) -> int:
    """Show what undoing a change would bring back, and with --apply do it: every byte and every modification time.

    Example: rmqctl undo --apply -s /data/rocketmq/store
    """
    root = ctx.store_root()
    ctx.open_store().close()
    if list_:
        return _list(ctx)
    if forget:
        return _forget(ctx, id, yes=yes)
    from store_core.mend.applying.undo import undo as take_back

    report = take_back(root, id)
    if apply:
        _refuse_outside(ctx, [item.path for item in report.items])
        report = take_back(root, id, apply=True)
    document: dict[str, Any] = {
        "store": str(root),
        "undo_id": report.id,
        "items": [asdict(item) for item in report.items],
        "later_folders": list(report.later_folders),
        "applied": report.applied,
    }
    said = "Undone." if report.applied else "Nothing has been changed. Add --apply to bring this back."
    table = Table(document["items"], ("path", "what", "size_bytes"), f"Change {report.id}")
    ctx.emit(document, rows="items", blocks=[table, Text(said, "bold")])
    return exit_codes.OK


def _refuse_outside(ctx: Context, changed: list[str]) -> None:
    """Raise UsageError where files outside the root would be written to whose log folder was not named."""
    named = ctx.settings().writable_commitlog_paths
    for path in map(Path, changed):
        if path.is_absolute() and not any(path.is_relative_to(os.path.realpath(folder)) for folder in named):
            raise UsageError(
                "the log lies outside the store and is not written to",
                path=str(path),
                to_do=f"add --commitlog {path.parent}",
            )


def _list(ctx: Context) -> int:
    from store_core.mend.applying.undo import list_undo

    changes = []
    for change in list_undo(ctx.store_root()):
        row = asdict(change)
        row["made_at_timestamp_ms"] = row.pop("made_at_ms")
        changes.append(row)
    document = {"store": str(ctx.store_root()), "changes": changes}
    ctx.emit(document, rows="changes", columns=_CHANGE_COLUMNS, title="Changes that can be undone")
    return exit_codes.OK


def _forget(ctx: Context, id: str | None, *, yes: bool) -> int:
    from store_core.mend.applying.undo import forget, list_undo

    root = ctx.store_root()
    known = [change.id for change in list_undo(root)]
    if not known:
        raise UsageError("there is nothing to forget", to_do="no change is kept here")
    chosen = id or known[0]
    forget(root, chosen, abandon=yes)
    ctx.emit({"store": str(root), "forgotten": chosen}, facts=("store", "forgotten"))
    return exit_codes.OK
