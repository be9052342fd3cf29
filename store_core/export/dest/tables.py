"""Tables that an export fills together, and how its commits relate: what every kind of destination needs to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from store_core.errors import UsageError
from store_core.export.dest.parquet import WrittenFile
from store_core.export.dest.parts import FOLDERS
from store_core.export.rows import schema


@dataclass(frozen=True, slots=True)
class TableSet:
    """Tables by their names, each with its folder below the destination and its columns.

    The first one tells whether an export is there. ``adds``: a commit adds to those before it, and names the other tables'
    files, so that the next one can add what this one does not come to. Else a commit replaces all of them, the first one last.
    """

    what: str
    folders: Mapping[str, str]
    columns: Mapping[str, pa.Schema]
    adds: bool

    @property
    def main(self) -> str:
        return next(iter(self.folders))

    @property
    def others(self) -> list[str]:
        return list(self.folders)[1:]

    def refusal(self, address: str) -> UsageError:
        """For a finished export in the way."""
        ways = "add to it with --incremental, or" if self.adds else "or"
        return UsageError(
            "a finished export is there", path=address, to_do=f"name another place, {ways} replace it with --overwrite"
        )


MESSAGES: Final = TableSet(
    "messages",
    {"messages": FOLDERS["messages"], "quarantine": FOLDERS["quarantine"]},
    {"messages": schema.MESSAGES, "quarantine": schema.QUARANTINE},
    adds=True,
)


class State(Protocol):
    """What a commit says of the whole export."""

    @property
    def layout(self) -> Mapping[str, Any]: ...

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class WholeState:
    """The state of an export that was made at once; of one that stands in the way, nothing is known but that it is there."""

    told: Mapping[str, Any]
    id: str = ""

    @property
    def layout(self) -> Mapping[str, Any]:
        return {"partition_by": None}

    def as_json(self) -> dict[str, Any]:
        return dict(self.told)


def standing_as(written: Mapping[str, Any] | None) -> WholeState:
    """Of what the commit says that made an export which is replaced as a whole."""
    return WholeState({}, str(((written or {}).get("state") or {}).get("id") or ""))


def in_order(tables: TableSet) -> Sequence[str]:
    """The tables as they are committed."""
    return [tables.main, *tables.others] if tables.adds else [*tables.others, tables.main]


def state_in_commit(tables: TableSet, parts: Iterable[WrittenFile], state: State, *, replaces: bool) -> dict[str, Any]:
    """What the commit that decides says: the state, and the files that are to be added to the other tables, or to be all
    that these hold."""
    left = {name: [part.as_json() for part in parts if part.table == name] for name in tables.others if tables.adds}
    return {"state": state.as_json(), "replaces": replaces, **left}
