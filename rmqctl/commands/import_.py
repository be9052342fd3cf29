"""`rmqctl import`: store many messages from a file or a pipe."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl import exit_codes
from rmqctl.context import Context
from rmqctl.mending import report_finished
from rmqctl.output.streams import standard_input
from store_core.errors import FailedError

if TYPE_CHECKING:
    from store_core.engine.importing import Imported

_STANDARD_INPUT: Final = "-"


def import_(
    ctx: Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="Messages, one JSON object a line; - is standard input.")
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Store all of them in this topic, not in their own.")
    ] = None,
    create_topic: Annotated[
        bool, typer.Option("--create-topic", help="Configure unknown topics, as autoCreateTopicEnable does.")
    ] = False,
    rejects: Annotated[
        str | None,
        typer.Option(
            "--rejects", metavar="FILE", help="Write rows that are not stored to a file, each with the reason."
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Import a source that was imported already from its first row once more; if that is killed, run it without --again.",
        ),
    ] = False,
) -> int:
    """Store many messages in a store that no broker runs on, by a broker's rules, from rows as `rmqctl log -o ndjson` writes
    them. Body, topic, tags, keys, properties, flag, born time and host are kept, and the queue where the topic has it;
    offsets, store times and store hosts are new. A row needs no more than topic and body, so that
    `rmqctl log -o ndjson -s OLD | rmqctl import - -s NEW` takes messages to another store.

    After a kill, `rmqctl recover --apply` comes first, as after any crash; run again with the same source, the command goes
    on where it ended, and every row is there exactly once. A source that has grown is continued; one that begins as another
    and goes on otherwise is refused. Rows that a broker would refuse are counted, and the command ends with 3.

    Example: rmqctl import rows.ndjson --topic orders --rejects rejects.ndjson
    """
    from store_core.engine.importing import import_rows
    from store_core.engine.live_store import WriteOptions, open_for_writing

    ctx.refuse_remote()
    settings = ctx.settings()
    begun = monotonic()
    with ExitStack() as opened:
        stream, size_bytes = _opened(source, opened)
        live = opened.enter_context(open_for_writing(settings, WriteOptions(), partial(report_finished, ctx)))
        with ctx.progress("import", size_bytes) as bar:
            result = import_rows(
                live,
                stream,
                topic=topic,
                create_topic=create_topic,
                rejects=Path(rejects).expanduser() if rejects is not None else None,
                again=again,
                on_progress=bar,
            )
    ctx.output.emit(_document(source, result, monotonic() - begun))
    if result.continued_rows:
        ctx.note(f"{result.continued_rows} rows were imported before; --again imports them once more")
    if result.found:
        ctx.note(f"{result.found} rows of an interrupted import were stored already")
    return exit_codes.FINDINGS if result.rejected else exit_codes.OK


def _opened(source: str, opened: ExitStack) -> tuple[IO[bytes], int]:
    """Return the source's stream, and its length where it is known. Raises FailedError."""
    if source == _STANDARD_INPUT:
        return standard_input(), 0
    try:
        stream = opened.enter_context(Path(source).expanduser().open("rb"))
        return stream, os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise FailedError(
            f"cannot read the rows: {error.strerror}", path=source, to_do="name a readable file"
        ) from error


def _document(source: str, result: Imported, seconds: float) -> dict[str, Any]:
    return {
        "source": source,
        "rows": result.rows,
        "stored": result.stored + result.found,
        "rejected": result.rejected,
        "continued_rows": result.continued_rows,
        "first_phy_offset": result.first_phy_offset,
        "next_phy_offset": result.next_phy_offset,
        "topics": dict(result.topics),
        "seconds": round(seconds, 3),
    }
