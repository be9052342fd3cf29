"""Declare the options that several commands share, and the global ones, which go before or after any command."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer

from rmqctl import __version__, exit_codes
from rmqctl.times import parse_time, parse_zone
from rmqctl.values import reading
from store_core.errors import UsageError
from store_core.layout.paths import CONSUMEQUEUE
from store_core.storage.remote_path import named_path, path_of

__all__ = [
    "Begin",
    "End",
    "GlobalOptions",
    "KeepCopiesOption",
    "StoreName",
    "TopicArgument",
    "YesOption",
    "global_options",
    "parse_size",
    "parse_time",
    "read_size",
    "read_time",
    "refuse_backwards",
]

ColumnFormat = Literal["parquet", "arrow"]  # binary, with the columns' types
Format = Literal["table", "plain", "json", "ndjson", "csv", "tsv", "github", ColumnFormat]
COLUMN_FORMATS: Final[tuple[ColumnFormat, ...]] = get_args(ColumnFormat)
PANEL: Final = "Global options"
STORE_VARIABLE: Final = "RMQCTL_STORE"
DEFAULT_STORE: Final = "~/store"

_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_OLDEST, _NEWEST = (4, 3), (5, 5)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


def _version(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        print(f"{ctx.find_root().info_name} {__version__}")
        raise typer.Exit(exit_codes.OK)


def global_options(
    store: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--store",
            metavar="[NAME=]PATH",
            rich_help_panel=PANEL,
            help=f"Store root or its URL; else ${STORE_VARIABLE}, else -c's, else {DEFAULT_STORE}.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", rich_help_panel=PANEL, help="The broker's own properties file."),
    ] = None,
    commitlog: Annotated[
        list[str] | None,
        typer.Option(
            "--commitlog",
            metavar="PATH",
            rich_help_panel=PANEL,
            help="A log folder outside the store root; repeatable.",
        ),
    ] = None,
    output: Annotated[
        Format | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FORMAT",
            rich_help_panel=PANEL,
            help="table (on a terminal), plain (when piped), json, ndjson, csv, tsv, github; of sql also parquet, arrow.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", rich_help_panel=PANEL, help="Results and errors only.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", rich_help_panel=PANEL, help="Say more on stderr.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", rich_help_panel=PANEL, help="No colours, as $NO_COLOR.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", rich_help_panel=PANEL, help="No progress bar.")] = False,
    broker_version: Annotated[
        str | None,
        typer.Option(
            "--broker-version",
            metavar="X.Y[.Z]",
            rich_help_panel=PANEL,
            help="Assume this broker's behaviour (4.3 to 5.5); default: from evidence in the store.",
        ),
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option(
            "--tz",
            metavar="ZONE",
            is_eager=True,
            rich_help_panel=PANEL,
            help="Zone in which times are shown and read: UTC (default), local, +08:00, Asia/Shanghai.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, rich_help_panel=PANEL, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Declare, by this signature, the options that every command and the program itself take."""


@dataclass(frozen=True, slots=True)
class StoreName:
    """A store root as the user named it; ``name`` is None if only a path was given."""

    name: str | None
    path: Path

    @classmethod
    def parse(cls, text: str) -> StoreName:
        """Parse ``[NAME=]PATH``. Raises UsageError if NAME or PATH is empty."""
        name, path = named_path(text)
        if not path or "\0" in path:
            raise UsageError("the store path is empty", to_do="name the store's root with -s")
        return cls(name, path_of(path).expanduser())


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The global options in effect, given before or after the command."""

    stores: tuple[StoreName, ...] = ()
    config: Path | None = None
    commitlog: tuple[Path, ...] = ()
    output: Format | None = None
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    no_progress: bool = False
    broker_version: str | None = None
    zone: tzinfo = UTC

    @classmethod
    def merged(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> GlobalOptions:
        """Merge the options given before and after the command: the later value counts, stores and log folders add up. Raises UsageError."""

        def last(name: str) -> Any:
            value = after.get(name)
            return before.get(name) if value is None else value

        named = [*(before.get("store") or ()), *(after.get("store") or ())]
        if not named and os.environ.get(STORE_VARIABLE):
            named = [os.environ[STORE_VARIABLE]]
        config = last("config")
        logs = [*(before.get("commitlog") or ()), *(after.get("commitlog") or ())]
        return cls(
            stores=tuple(StoreName.parse(text) for text in named),
            config=Path(config).expanduser() if config else None,
            commitlog=tuple(path_of(path).expanduser() for path in logs),
            output=last("output"),
            quiet=bool(before.get("quiet") or after.get("quiet")),
            verbose=bool(before.get("verbose") or after.get("verbose")),
            no_color=bool(before.get("no_color") or after.get("no_color")),
            no_progress=bool(before.get("no_progress") or after.get("no_progress")),
            broker_version=_checked_version(last("broker_version")),
            zone=parse_zone(last("tz") or "UTC"),
        )


def _checked_version(text: str | None) -> str | None:
    if text is None:
        return None
    version = _VERSION.fullmatch(text.strip())
    if not version or not _OLDEST <= (int(version[1]), int(version[2])) <= _NEWEST:
        raise UsageError(f"unknown broker version {text!r}", to_do="give 4.3 to 5.5, such as 4.9.7 or 5.3")
    return text.strip()


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names: ``4096``, ``64k``, ``1.5GiB``; units are powers of 1024. Raises UsageError."""
    size = _SIZE.fullmatch(text.strip())
    if not size:
        raise UsageError(f"{text!r} is no size", to_do="give bytes, or a number with k, M, G or T")
    return int(float(size[1]) * 1024 ** " kmgt".index(size[2].lower() or " "))


def refuse_backwards(first: int | None, last: int | None, options: tuple[str, str] = ("--begin", "--end")) -> None:
    """Raise UsageError if ``last`` is before ``first``, times or offsets. ``options`` name the two ends."""
    if first is None or last is None or first <= last:
        return
    name, end_name = options
    ends = "" if options == ("--begin", "--end") else f" from {first} to {last}"
    raise UsageError(f"the range{ends} ends before it begins", to_do=f"give {end_name} after {name}")


def _given(ctx: typer.Context, name: str) -> Any:
    """Return a global option's value if already parsed: the one after the command, else the one before it."""
    before = ctx.parent.params if ctx.parent else {}
    return ctx.params.get(name) or before.get(name)


def _time(text: str, ctx: typer.Context) -> int:
    """Return ISO 8601, epoch milliseconds or an age as milliseconds since the epoch. Raises UsageError."""
    return parse_time(text, time.time_ns() // 1_000_000, parse_zone(_given(ctx, "tz") or "UTC"))


read_time: Final = reading(_time)
read_size: Final = reading(lambda text, _: parse_size(text))


def complete_topics(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """Return topics with queue folders in the store named so far; none if its folder cannot be read."""
    named = _given(ctx, "store") or [os.environ.get(STORE_VARIABLE) or DEFAULT_STORE]
    try:
        folder = StoreName.parse(named[-1]).path / CONSUMEQUEUE
        with os.scandir(folder) as entries:  # a RocksDB database has files there
            return sorted(entry.name for entry in entries if entry.name.startswith(incomplete) and entry.is_dir())
    except (OSError, UsageError):
        return []


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.", autocompletion=complete_topics)]
Begin = Annotated[
    int | None,
    typer.Option(
        "--begin", metavar="TIME", callback=read_time, help="Stored at or after this time (ISO 8601, epoch ms, -15m)."
    ),
]
End = Annotated[
    int | None,
    typer.Option(
        "--end", metavar="TIME", callback=read_time, help="Stored at or before this time (ISO 8601, epoch ms, -15m)."
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="Threads that walk the log.")]
WALKERS: Final = min(2, os.cpu_count() or 1)  # the thread that reads their results keeps up with no more than two
KeepCopiesOption = Annotated[
    bool, typer.Option("--keep-copies", help="Take copies of one broker's log each for itself.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
