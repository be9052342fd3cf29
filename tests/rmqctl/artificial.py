"""Commands that only tests have: each does one awkward thing. ``python -m tests.rmqctl.artificial NAME …`` runs one."""

from __future__ import annotations

import errno
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import rmqctl.commands as commands
from rmqctl.commands import CommandEntry
from rmqctl.context import Context, confirm, exit_for_findings
from rmqctl.options import Begin
from rmqctl.output.document import Facts, Findings, Table, Text
from store_core.errors import FailedError
from store_core.findings import finding

HOSTILE = 'a\x1b[31mred\x07\x9b2J\u202e|\n\t"b\x7f'


def numbers(count: int, note: str = "x") -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "queue_offset": number,
            "size_bytes": number * 1024,
            "store_timestamp_ms": number,
            "body": f"{note}{number}",
        }


def rows(ctx: Context, count: Annotated[int, typer.Option()] = 3) -> int:
    """Stream rows, and a member that is only known behind them.

    Example: rmqctl rows --count 5
    """
    seen = []

    def counted() -> Iterator[dict[str, Any]]:
        for row in numbers(count):
            seen.append(1)
            yield row

    ctx.output.emit({"topic": "T", "messages": counted(), "seen": lambda: len(seen)}, rows="messages")
    return 0


def hostile(ctx: Context) -> int:
    """Show what tries to drive the terminal.

    Example: rmqctl hostile
    """
    found = [finding("L001", f"message {HOSTILE}", file="commitlog/0", phy_offset=7, topic=HOSTILE, queue_id=2)]
    row = {"body": HOSTILE, "properties": {"K": HOSTILE}, "keys": [HOSTILE, "k2"], "severity": "error"}
    ctx.warn(f"warned {HOSTILE}")
    ctx.output.emit({"rows": [row], "findings": found}, rows="rows", title=f"title {HOSTILE}")
    return exit_for_findings(found)


def midway(ctx: Context, count: Annotated[int, typer.Option()] = 2) -> None:
    """Fail while rows are being written.

    Example: rmqctl midway
    """

    def failing() -> Iterator[dict[str, Any]]:
        yield from numbers(count)
        raise FailedError("the disk is gone", path="/dev/x", phy_offset=99, to_do="plug it in")

    ctx.output.emit({"topic": "T", "stores": [{"name": "s", "messages": failing()}], "never": 1}, rows=failing())


def crash(ctx: Context, kind: str) -> None:
    """Raise something.

    Example: rmqctl crash bug
    """
    kinds: dict[str, Callable[[], BaseException]] = {
        "bug": lambda: KeyError("no\nsuch"),
        "memory": MemoryError,
        "recursion": RecursionError,
        "denied": lambda: PermissionError(errno.EACCES, "Permission denied", "/data/x"),
        "full": lambda: OSError(errno.ENOSPC, "No space left on device", "/data/x"),
        "folder": lambda: IsADirectoryError(errno.EISDIR, "Is a directory", "/data/x"),
        "socket": lambda: BrokenPipeError(errno.EPIPE, "Broken pipe"),
        "interrupt": KeyboardInterrupt,
        "exit": lambda: typer.Exit(3),
    }
    raise kinds[kind]()


def slow(ctx: Context, marker: Path, silent: Annotated[bool, typer.Option("--silent")] = False) -> None:
    """Go on for ever; tidy up at the end.

    Example: rmqctl slow /tmp/marker
    """

    def endless() -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            yield {"number": number}
            if number == 0:
                sys.stdout.flush()
                marker.write_text("running")
            number += 1
            time.sleep(0.01)

    try:
        if silent:
            marker.write_text("running")
            while True:
                time.sleep(0.01)
        ctx.output.emit({"rows": endless()}, rows="rows")
    finally:
        marker.write_text("tidy")


def workers(ctx: Context, marker: Path) -> None:
    """Let forked processes work for ever.

    Example: rmqctl workers /tmp/marker
    """
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    working = [fork.Process(target=time.sleep, args=(3600,)) for _ in range(2)]
    for worker in working:
        worker.start()
    try:
        marker.write_text("running")
        for worker in working:
            worker.join()
        time.sleep(3600)
    finally:
        for worker in working:
            worker.kill()  # as LocalRunner does: a fresh copy may lose a gentler signal
            worker.join()
        marker.write_text("tidy")


def flood(ctx: Context) -> None:
    """Write rows without an end.

    Example: rmqctl flood
    """
    ctx.output.emit({"rows": numbers(1 << 40)}, rows="rows")


def ask(ctx: Context, yes: Annotated[bool, typer.Option("--yes")] = False) -> None:
    """Ask before going on.

    Example: rmqctl ask --yes
    """
    ctx.output.emit({"answer": confirm(ctx, "Really?", yes)})


def options(
    ctx: Context, begin: Begin = None, several: Annotated[list[str] | None, typer.Option("--x")] = None
) -> None:
    """Tell what was understood, [brackets] included.

    Example: rmqctl options --begin -15m
    """
    o = ctx.options
    ctx.output.emit(
        {
            "stores": [[s.name, str(s.path)] for s in o.stores],
            "config": o.config,
            "commitlog": o.commitlog,
            "format": ctx.output.format,
            "quiet": o.quiet,
            "verbose": o.verbose,
            "no_color": o.no_color,
            "no_progress": o.no_progress,
            "broker_version": o.broker_version,
            "zone": str(o.zone),
            "begin": begin,
            "several": several,
        }
    )


def one_store(ctx: Context) -> None:
    """Take one store only.

    Example: rmqctl one-store -s /data/store
    """
    ctx.output.emit({"root": str(ctx.store_root())})


def opens(ctx: Context) -> None:
    """Open all stores.

    Example: rmqctl opens -s A -s B
    """
    with ctx.open_stores() as stores:
        ctx.output.emit({"stores": [name for name, _ in stores]})


def work(ctx: Context, seconds: float = 0.0, talk: bool = False) -> None:
    """Work with a progress bar, and a note in the middle.

    Example: rmqctl work --seconds 1
    """
    end, total = time.monotonic() + seconds, 1 << 30
    with ctx.progress("work", total) as bar:
        while (left := end - time.monotonic()) > 0:
            bar(int(total * (1 - left / seconds)))
            time.sleep(0.02)
            if talk and left < seconds / 2:
                ctx.note("half of it")
                talk = False
    ctx.note("a note")
    ctx.detail("a detail")
    ctx.warn("a warning")
    ctx.output.emit({"done": True})


def search(ctx: Context, seconds: float = 0.0) -> None:
    """Find a row in the middle of the work.

    Example: rmqctl search --seconds 1
    """

    def found() -> Iterator[dict[str, Any]]:
        start = time.monotonic()
        with ctx.progress("search", 1 << 30) as bar:
            while (share := (time.monotonic() - start) / seconds) < 1:
                bar(int(share * (1 << 30)))
                time.sleep(0.02)
                if share > 0.5 and not seen:
                    seen.append(1)
                    yield {"row": 0}

    seen: list[int] = []
    ctx.output.emit({"rows": found()}, rows="rows")


def gallery(ctx: Context) -> int:
    """Show one of each block.

    Example: rmqctl gallery
    """
    found = [
        finding(
            "L001", "body checksum is 0x1, should be 0x2", file="commitlog/00000000000000131072", phy_offset=131200
        ),
        finding("Q003", "entry points nowhere", topic="TopicA", queue_id=3, queue_offset=17),
        finding("S001", "abort is there", file="abort"),
    ]
    ctx.output.emit(
        {"rows": list(numbers(3)), "findings": found},
        rows="rows",
        blocks=[
            Facts(
                {"store": "/data", "size_bytes": 1_400_000, "born_timestamp_ms": 1_795_227_122_343, "nothing": None},
                "Facts",
            ),
            Table(numbers(3), title="Rows"),
            Findings(found),
            Text("That is all."),
        ],
    )
    return exit_for_findings(found)


SEVERAL = {"options", "opens"}
PIPED_NDJSON = {"flood"}
FUNCTIONS: tuple[Callable[..., int | None], ...] = (
    rows, hostile, midway, crash, slow, workers, flood, ask, options, one_store, opens, work, search, gallery,
)  # fmt: skip


def install() -> dict[str, CommandEntry]:
    """Modules of these functions where the program looks for commands, and their rows of the table."""
    entries = {}
    for function in FUNCTIONS:
        name = function.__name__.replace("_", "-")
        module = types.ModuleType(f"rmqctl.commands.{function.__name__}")
        setattr(module, function.__name__, function)
        sys.modules[module.__name__] = module
        entries[name] = CommandEntry(
            name,
            "Look",
            (function.__doc__ or "").partition("\n")[0],
            piped="ndjson" if name in PIPED_NDJSON else "plain",
            several_stores=name in SEVERAL,
        )
    return entries


if __name__ == "__main__":
    real, made = commands.built_commands(), install()
    import rmqctl.shell

    for module in (commands, rmqctl.shell):
        setattr(module, "built_commands", lambda: {**real, **made})  # noqa: B010  # mypy would not have it assigned
    from rmqctl.app import main

    sys.exit(main())
