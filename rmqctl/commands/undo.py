"""`rmqctl undo`: bring back what a mending command changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqctl import exit_codes
from rmqctl.context import Context, confirm
from rmqctl.mending import ApplyOption, report_finished
from rmqctl.options import YesOption
from rmqctl.output.cells import Column
from rmqctl.output.document import Block, Table, Text
from store_core.errors import UsageError

_CHANGE_FIELDS = ("id", "state", "kind", "policy", "plan_id", "steps", "made_at_timestamp_ms")
_ITEM_FIELDS = ("path", "what", "size_bytes", "mtime_ns", "ranges")
_CHANGE_COLUMNS = ("id", "state", "kind", "policy", "steps", "made_at_timestamp_ms")


def undo(
    ctx: Context,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Which change; the newest if none is named.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the changes that are kept, newest first.")] = False,
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
    ctx.refuse_no_store()
    if list_:
        return _list(ctx)
    if forget:
        return _forget(ctx, id, yes=yes)
    from store_core.recovery.apply.undo import undo as take_back

    named = _named_outside(ctx, apply=apply)
    report = take_back(root, id, apply=apply, writable_roots=named, on_settled=partial(report_finished, ctx))
    items = [asdict(item) for item in report.items]
    document: dict[str, Any] = {
        "store": str(root),
        "undo_id": report.id,
        "state": report.state,
        "items": [{**item, "ranges": [_range(*kept) for kept in item["ranges"]]} for item in items],
        "later_folders": list(report.later_folders),
        "applied": report.applied,
    }
    ctx.output.emit(document, rows="items", fields=_ITEM_FIELDS, blocks=lambda: _blocks(document))
    return exit_codes.OK if report.applied else exit_codes.FINDINGS  # a dry run that has something to bring back


def _range(offset: int, size_bytes: int) -> dict[str, int]:
    return {"offset": offset, "size_bytes": size_bytes}


def _blocks(document: dict[str, Any]) -> Iterator[Block]:
    """List what comes back, a row for each range of bytes."""
    title = f"Change {document['undo_id']}"
    if document["state"] != "done":
        said = "was interrupted, and has been taken back" if document["applied"] else "was interrupted"
        yield Text(f"{title} {said} ({document['state']}).")
    else:
        rows = ({**item, **kept} for item in document["items"] for kept in item["ranges"] or [_range(0, 0)])
        yield Table(map(_shown, rows), ("path", "what", Column("offset", "number"), "size_bytes"), title)
    if document["applied"]:
        yield Text("Undone.", "bold")
    elif document["state"] == "done":
        yield Text("Nothing has been changed. Add --apply to bring this back.", "bold")
    else:
        yield Text(
            "Nothing has been changed. With --apply it is finished or taken back, and what it did is undone.", "bold"
        )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row if row["ranges"] else {**row, "offset": None, "size_bytes": None}


def _named_outside(ctx: Context, *, apply: bool) -> list[Path]:
    """Log folders outside the store that may be looked at, or with ``apply`` written to, as the user names them."""
    settings = ctx.settings()
    return [path for path in settings.outside_paths if not apply or path in settings.writable_commitlog_paths]


def _list(ctx: Context) -> int:
    from store_core.recovery.apply.undo import list_undo

    changes = []
    for change in list_undo(ctx.store_root()):
        row = asdict(change)
        row["made_at_timestamp_ms"] = row.pop("made_at_ms")
        changes.append(row)
    document = {"store": str(ctx.store_root()), "changes": changes}
    ctx.output.emit(
        document, rows="changes", columns=_CHANGE_COLUMNS, fields=_CHANGE_FIELDS, title="Changes that are kept"
    )
    return exit_codes.OK


def _forget(ctx: Context, id: str | None, *, yes: bool) -> int:
    from store_core.recovery.apply.undo import forget, list_undo

    root = ctx.store_root()
    known = {change.id: change for change in list_undo(root)}
    if not known:
        raise UsageError("there is nothing to forget", to_do="no change is kept here")
    if id is not None and id not in known:
        raise UsageError(f"there is no change {id!r} to forget", to_do="see `rmqctl undo --list`")
    chosen = known[id or next(iter(known))]
    what = "can never be undone then" if chosen.state == "done" else "is unfinished, and stays as it stands"
    if not confirm(ctx, f"Forget {chosen.id}? It {what}.", yes):
        raise UsageError("not confirmed", to_do="nothing was changed")
    forget(root, chosen.id, abandon=True, writable_roots=_named_outside(ctx, apply=True))
    ctx.output.emit({"store": str(root), "forgotten": chosen.id}, facts=("store", "forgotten"))
    return exit_codes.OK
