"""Parse and check the reader's options, so that they can go to executors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from store_core.codec.times import time_ms
from store_core.errors import UsageError
from store_core.read.log import LogFilter
from store_core.storage.remote_path import named_path, path_of
from store_core.storage.settings import Settings, load_settings

Table = Literal["messages", "quarantine"]
Word = TypeVar("Word", bound=str)
JsonValue = TypeVar("JsonValue")
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]  # Spark's own names for the treatment of bad records

Start = str | int

QUIET_MS: Final = 1000
_MOST_QUIET_MS: Final = 24 * 3600 * 1000
_MOST_DIGITS: Final = 18  # of an offset of 64 bits
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# In the case of the documentation; Spark accepts any case.
BATCH: Final = (
    "path",
    "paths",  # load([…]) sets it for several
    "config",
    "table",
    "topic",
    "fromOffset",
    "toOffset",
    "beginTime",
    "endTime",
    "columns",
    "splitSize",
    "mode",
    "keepCopies",
)
STREAM: Final = ("maxBytesPerTrigger", "startingOffset", "failOnDataLoss", "quietMs")
_KNOWN: Final = {name.lower(): name for name in (*BATCH, *STREAM)}
_LISTS: Final = ("topic", "columns")
_YEAR_DIGITS: Final = 4  # the operator means a year, not milliseconds
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_EXAMPLE_OF_STARTS: Final = '{"broker-a": 1024, "broker-b": "latest"}'
_EXAMPLE_OF_PATHS: Final = '["broker-a=/data/a/store", "broker-b=/data/b/store"]'
_EXAMPLE_OF_TIME: Final = "2026-07-31T12:00:00+08:00 (UTC where no zone is named), or milliseconds since 1970"


@dataclass(frozen=True, slots=True)
class StoreOfSource:
    """A store as the operator named it: ``given`` is the NAME before its path. ``planning`` chooses its final name."""

    given: str | None
    settings: Settings


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options; sizes in bytes.

    * ``split_size_bytes``: None leaves the choice to the planning.
    * ``starting``: where a stream without a checkpoint starts: earliest, latest or an offset, for all stores or by
      name.
    * ``keep_copies``: copies of one log are read separately.
    * ``for_streams``: the given options that only streams use.
    """

    stores: tuple[StoreOfSource, ...]
    wanted: LogFilter = field(default_factory=LogFilter)
    table: Table = "messages"
    mode: Mode = "PERMISSIVE"
    columns: tuple[str, ...] | None = None
    split_size_bytes: int | None = None
    max_bytes_per_trigger: int | None = None
    starting: Start | Mapping[str, Start] = EARLIEST
    fail_on_data_loss: bool = True
    quiet_ms: int = QUIET_MS
    keep_copies: bool = False
    for_streams: tuple[str, ...] = ()


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a reader; their names may have any case. Raises UsageError for an unknown or impossible
    one.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name in given:
        if name.lower() not in _KNOWN:
            raise _unknown(name)
    for name, text in options.items():
        if not text.strip(", " if name in _LISTS else None) and name != "path":
            raise UsageError(f"{_KNOWN[name]} is empty", to_do="give it a value, or leave it out")

    def number(name: str) -> int | None:
        text = options.get(name.lower())
        return None if text is None else _number(name, text, "give digits")

    columns = tuple(name.lower() for name in _listed(options.get("columns")))
    quiet_ms = number("quietMs")
    if quiet_ms is not None and quiet_ms > _MOST_QUIET_MS:
        raise UsageError(f"quietMs is more than a day: {quiet_ms}", to_do="give milliseconds")
    wanted = LogFilter(
        number("fromOffset"),
        number("toOffset"),
        _time_ms("beginTime", options.get("begintime")),
        _time_ms("endTime", options.get("endtime")),
        frozenset(_listed(options.get("topic"))),
    )
    _check(wanted, columns)
    return SourceOptions(
        stores=_stores(options),
        wanted=wanted,
        table=_one_of("table", options.get("table", "messages").lower(), get_args(Table)),
        mode=_one_of("mode", options.get("mode", "PERMISSIVE").upper(), get_args(Mode)),
        columns=columns or None,
        split_size_bytes=_size("splitSize", options.get("splitsize")),
        max_bytes_per_trigger=_size("maxBytesPerTrigger", options.get("maxbytespertrigger")),
        starting=_starting(options.get("startingoffset", EARLIEST)),
        fail_on_data_loss=_is_true("failOnDataLoss", options.get("failondataloss", "true")),
        quiet_ms=QUIET_MS if quiet_ms is None else quiet_ms,
        keep_copies=_is_true("keepCopies", options.get("keepcopies", "false")),
        for_streams=tuple(name for name in STREAM if name.lower() in options),
    )


def _unknown(name: str) -> UsageError:
    near = get_close_matches(name.lower(), _KNOWN, 1)
    meant = f"did you mean {_KNOWN[near[0]]}? " if near else ""
    return UsageError(f"there is no option {name!r}", to_do=f"{meant}known are {', '.join(_KNOWN.values())}")


def _starting(text: str) -> Start | Mapping[str, Start]:
    """Parse one start for all stores, or JSON with a start for each store's name."""
    if not text.lstrip().startswith("{"):
        return _start(text)
    return {name: _start(str(start)) for name, start in _json("startingOffset", text, dict, _EXAMPLE_OF_STARTS).items()}


def _json(name: str, text: str, kind: type[JsonValue], example: str) -> JsonValue:
    """Parse the JSON value of an option. Raises UsageError for another kind of value, or a name given twice."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, value in pairs:
            if key in members:
                raise UsageError(f"{name} names {key!r} twice", to_do="name each once")
            members[key] = value
        return members

    with suppress(ValueError, RecursionError):
        told = json.loads(text, object_pairs_hook=once)
        if isinstance(told, kind):
            return told
    raise UsageError(f"{name} is no JSON of its kind: {text!r}", to_do=f"give {example}")


def _start(text: str) -> Start:
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    return _number("startingOffset", text, f"give earliest, latest or digits, or for each store {_EXAMPLE_OF_STARTS}")


def _number(name: str, text: str, to_do: str) -> int:
    word = text.strip()
    if not word.isdecimal():
        raise UsageError(f"{name} is no number: {text!r}", to_do=to_do)
    if len(word) > _MOST_DIGITS:
        raise UsageError(f"{name} is a number of {len(word)} digits", to_do=f"give {_MOST_DIGITS} at most")
    return int(word)


def _check(wanted: LogFilter, columns: Sequence[str]) -> None:
    """Raise UsageError for ranges that end before they start, and for columns named twice."""
    for low, high, names in (
        (wanted.from_phy_offset, wanted.to_phy_offset, ("fromOffset", "toOffset")),
        (wanted.begin_ms, wanted.end_ms, ("beginTime", "endTime")),
    ):
        if low is not None and high is not None and low > high:
            raise UsageError(f"{names[0]} is after {names[1]}", to_do="give the lower one first")
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise UsageError(f"the column {twice[0]!r} is named twice", to_do="name each column once")


def _stores(options: Mapping[str, str]) -> tuple[StoreOfSource, ...]:
    config = _path(options["config"]) if options.get("config") else None
    paths = _listed(options.get("path")) or tuple(_json("paths", options.get("paths", "[]"), list, _EXAMPLE_OF_PATHS))
    if not all(isinstance(path, str) and path.strip() for path in paths):
        raise UsageError(f"paths holds what is no path: {options['paths']!r}", to_do=f"give {_EXAMPLE_OF_PATHS}")
    if not paths:
        raise UsageError("no store is named", to_do='give option("path", "[NAME=]PATH"), several with commas between')
    return tuple(StoreOfSource(name, load_settings(config, _path(path))) for name, path in map(named_path, paths))


def _path(text: str) -> Path:
    if "\0" in text:
        raise UsageError(f"no path has a NUL byte: {text!r}", to_do="write the path out")
    try:
        return path_of(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"the home folder of {text!r} is not known", to_do="write the path out") from error


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _one_of(name: str, value: str, known: tuple[Word, ...]) -> Word:
    for word in known:
        if word == value:
            return word
    raise UsageError(f"{name} is {value!r}", to_do=f"it may be {', '.join(known)}")


def _is_true(name: str, text: str) -> bool:
    return _one_of(name, text.lower(), ("true", "false")) == "true"


def _size(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()] if match else 0
    if size <= 0:
        raise UsageError(f"{name} is no size: {text!r}", to_do="give bytes, or 64k, 128m, 1g")
    return size


def _time_ms(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    text = text.strip()
    found = None if text.isdecimal() and len(text) <= _YEAR_DIGITS else time_ms(text)
    if found is None:
        raise UsageError(f"{name} is no time: {text!r}", to_do=f"give {_EXAMPLE_OF_TIME}")
    return found
