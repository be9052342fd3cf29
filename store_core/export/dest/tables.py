"""Describe the tables that an export fills together, for every kind of destination."""

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

    The first table decides whether an export exists. With ``adds``, a commit adds to earlier ones and names the other
    tables' files, so that the next export can add them after an interruption. Without it, a commit replaces all
    tables, the first one last.
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
        """Return the error for a finished export at the destination."""
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
    """The state of a whole export, as a commit contains it."""

    @property
    def layout(self) -> Mapping[str, Any]: ...

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class WholeState:
    """The state of an export that was made at once; empty for a finished one that blocks the destination."""

    told: Mapping[str, Any]
    id: str = ""

    @property
    def layout(self) -> Mapping[str, Any]:
        return {"partition_by": None}

    def as_json(self) -> dict[str, Any]:
        return dict(self.told)


def standing_as(written: Mapping[str, Any] | None) -> WholeState:
    """Return the state of an export that is replaced as a whole, from its commit."""
    return WholeState({}, str(((written or {}).get("state") or {}).get("id") or ""))


def in_order(tables: TableSet) -> Sequence[str]:
    """Return the tables in the order in which they are committed."""
    return [tables.main, *tables.others] if tables.adds else [*tables.others, tables.main]


def state_in_commit(tables: TableSet, parts: Iterable[WrittenFile], state: State, *, replaces: bool) -> dict[str, Any]:
    """Return the content of the deciding commit: the state, and the files of the other tables.

    The files are to be added to these tables, or to replace all their files (``replaces``).
    """
    files_of_others = {
        name: [part.as_json() for part in parts if part.table == name] for name in tables.others if tables.adds
    }
    return {"state": state.as_json(), "replaces": replaces, **files_of_others}
