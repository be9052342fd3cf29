"""`rmqctl dump-index`: the entries of the index files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl.cells import Column
from rmqctl.context import Context
from rmqctl.messages import shown_or_told
from store_core.errors import FailedError

if TYPE_CHECKING:
    from store_core.read.index import Index

_COLUMNS: Final = (
    Column("file", drop=2),
    "slot",
    "entry",
    "key_hash",
    "phy_offset",
    Column("store_timestamp_ms", "time", drop=1),
    Column("previous", drop=3),
)


def dump_index(
    ctx: Context,
    file: Annotated[str | None, typer.Option("--file", metavar="NAME", help="Only this index file.")] = None,
    slot: Annotated[
        int | None, typer.Option("--slot", min=0, metavar="N", help="Only this slot's chain, newest first.")
    ] = None,
    max_: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after so many entries.")] = None,
) -> int:
    """Show the entries of the index files in the order they were written, each with the slot it hangs on.

    Example: rmqctl dump-index --file 20261121021137121 --slot 17
    """
    from store_core.layout.paths import INDEX
    from store_core.read.index import Index, IndexRow
    from store_core.read.types import index_faults

    with ctx.open_store() as store, Index(store) as index:
        if file is not None and file not in {path.name for path in store.index_files}:
            raise FailedError(f"no index file {file!r}", path=str(store.root), to_do="see `rmqctl info` for the files")
        if slot is not None and index.sizes is not None and slot >= (slots := index.sizes.slots):
            ctx.note(f"there is no slot {slot}: the index files have slots 0 to {slots - 1}")
        rows = islice(_rows(index, file, slot), max_)
        findings = [
            *index.findings,
            *(f for f in index_faults(store, index.sizes) if file is None or f.file == f"{INDEX}/{file}"),
        ]
        ctx.output.emit(
            {"entries": rows, "findings": findings}, rows="entries", columns=_COLUMNS, fields=IndexRow._fields
        )
    return shown_or_told(ctx, findings)


def _rows(index: Index, file: str | None, slot: int | None) -> Iterator[dict[str, Any]]:
    for one in index.files:
        if file is None or one.path.name == file:
            for row in one.rows() if slot is None else one.slot_rows(slot):
                yield row._asdict()
