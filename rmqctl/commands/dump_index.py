"""`rmqctl dump-index`: the entries of the index files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl.context import Context
from rmqctl.messages import shown_or_counted
from rmqctl.output.cells import Column
from store_core.errors import FailedError

if TYPE_CHECKING:
    from store_core.kernel.text import RowBatch
    from store_core.read.index import Index, IndexFile

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
        rows = _rows(index, file, slot, max_)
        findings = [
            *index.findings,
            *(f for f in index_faults(store, index.sizes) if file is None or f.file == f"{INDEX}/{file}"),
        ]
        ctx.output.emit(
            {"entries": rows, "findings": findings}, rows="entries", columns=_COLUMNS, fields=IndexRow._fields
        )
    return shown_or_counted(ctx, findings)


def _rows(
    index: Index, file: str | None, slot: int | None, most: int | None
) -> Iterator[dict[str, Any]] | Iterator[RowBatch]:
    files = [one for one in index.files if file is None or one.path.name == file]
    return _batches(files, most) if slot is None else islice(_chains(files, slot), most)


def _batches(files: Iterable[IndexFile], most: int | None) -> Iterator[RowBatch]:
    for one in files:
        for batch in one.batches(most):
            yield batch
            most = None if most is None else most - batch.count


def _chains(files: Iterable[IndexFile], slot: int) -> Iterator[dict[str, Any]]:
    for one in files:
        for row in one.slot_rows(slot):
            yield row._asdict()
