"""Read and write the state of an export, with which the next export continues.

A manifest or a table's commit contains it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from store_core.errors import FailedError, UsageError
from store_core.export.rows import schema
from store_core.read.log import LogFilter

FORMAT: Final = "rmqctl-export"
MANIFEST_VERSION: Final = 2


HOLE: Final = "hole"  # kind of a range without a file
NEWEST_BEGINS: Final = 3  # first records kept of the newest segments, besides the oldest one's


class Proof(NamedTuple):
    """A frame that the log held, with the CRC-32C of its bytes (of a blank: of its prefix)."""

    phy_offset: int
    size_bytes: int
    crc32c: int

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "crc32c": f"{self.crc32c:08x}"}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Proof:
        return cls(int(told["phy_offset"]), int(told["size_bytes"]), int(told["crc32c"], 16))


class Begun(NamedTuple):
    """The note of an export that started: its plan, and the commit that was the newest then.

    ``behind`` identifies that commit by a number of the destination's own, 0 for none. A later commit with the same
    plan is the export's own result only if its number differs from ``behind``. ``untold``: no report has shown the
    findings of commit ``behind``.
    """

    plan: str
    behind: int
    untold: bool = False

    def as_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Begun | None:
        """Parse a note; None for anything else."""
        try:
            fields = json.loads(data) if data is not None else {}
            return cls(fields["plan"], fields["behind"], bool(fields.get("untold")))
        except (ValueError, KeyError, TypeError):
            return None

    def is_published(self, stands_as: int, id: str | None) -> bool:
        """Return True if the newest commit, whose plan is ``id``, is the result of this export."""
        return self.plan == id and self.behind != stands_as

    def is_untold(self, stands_as: int, id: str | None) -> bool:
        """Return True if no report has shown the findings of the newest commit, because its export was ended too
        early.
        """
        return self.is_published(stands_as, id) or (self.untold and self.behind == stands_as)

    def is_done(self, plan: str, stands_as: int, id: str | None) -> bool:
        """Return True if the newest commit is the result of ``plan``."""
        return self.plan == plan and self.is_published(stands_as, id)


class Told(NamedTuple):
    """A range with a row in the quarantine table that later commits must know."""

    phy_offset: int
    size_bytes: int
    kind: str

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Told:
        return cls(int(told["phy_offset"]), int(told["size_bytes"]), str(told["kind"]))


@dataclass(frozen=True, slots=True)
class StoreState:
    """The exported part of one store: frames in [from, next); its last frames, ``proof``, identify the log."""

    store: str
    from_phy_offset: int
    next_phy_offset: int
    rows: int
    findings: Mapping[str, int]
    proof: tuple[Proof, ...] = ()
    told: tuple[Told, ...] = ()  # ranges after the last frame
    lacks: tuple[Told, ...] = ()  # ranges that were unreadable or had no file, and are in no commit
    begins: tuple[Proof, ...] = ()  # first records of some segments, which shorter copies of the log have too

    def as_json(self) -> dict[str, Any]:
        return {
            **self.as_short_json(),
            "proof": [proof.as_json() for proof in self.proof],
            "quarantined_behind": [told._asdict() for told in self.told],
            "unreadable": [told._asdict() for told in self.lacks if told.kind != HOLE],
            "missing": [told._asdict() for told in self.lacks if told.kind == HOLE],
            "begins": [proof.as_json() for proof in self.begins],
        }

    def as_short_json(self) -> dict[str, Any]:
        """Return the fields without those that only the next export needs."""
        return {
            "store": self.store,
            "from_phy_offset": self.from_phy_offset,
            "next_phy_offset": self.next_phy_offset,
            "rows": self.rows,
            "findings": dict(self.findings),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> StoreState:
        return cls(
            str(told["store"]),
            int(told["from_phy_offset"]),
            int(told["next_phy_offset"]),
            int(told["rows"]),
            {str(code): int(count) for code, count in told["findings"].items()},
            tuple(map(Proof.from_json, told["proof"])),
            told=tuple(map(Told.from_json, told.get("quarantined_behind", ()))),
            lacks=tuple(map(Told.from_json, (*told.get("unreadable", ()), *told.get("missing", ())))),
            begins=tuple(map(Proof.from_json, told.get("begins", ()))),
        )

    def concat(self, later: StoreState) -> StoreState:
        """Add the state of a later commit."""
        return StoreState(
            self.store,
            self.from_phy_offset,
            later.next_phy_offset,
            self.rows + later.rows,
            _sum(self.findings, later.findings),
            later.proof or self.proof,
            later.told,
            tuple(dict.fromkeys((*self.lacks, *later.lacks))),
            tuple(dict.fromkeys((*self.begins[:1], *(*self.begins[1:], *later.begins)[-NEWEST_BEGINS:]))),
        )


def _sum(counts: Mapping[str, int], added: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(counts) + Counter(added))


@dataclass(frozen=True, slots=True)
class Commit:
    """A publication: its number, from 1, the fingerprint of its plan, and its additions of each store."""

    number: int
    id: str
    stores: tuple[StoreState, ...]

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self.stores)

    def as_json(self) -> dict[str, Any]:
        stores = [store.as_short_json() for store in self.stores]
        return {"commit": self.number, "id": self.id, "rows": self.rows, "stores": stores}


@dataclass(frozen=True, slots=True)
class ExportState:
    """All commits together: number and fingerprint of the last one, filter and layout of all, and the stores.

    ``last_findings`` are those of the last commit, and of earlier ones that no report has shown.
    """

    commit: int
    id: str
    filter: Mapping[str, Any]
    layout: Mapping[str, Any]
    stores: tuple[StoreState, ...]
    last_findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by store and code

    def of(self, store: str) -> StoreState | None:
        return next((state for state in self.stores if state.store == store), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "manifest_version": MANIFEST_VERSION,
            "schema_version": schema.VERSION,
            "commit": self.commit,
            "id": self.id,
            "rows": sum(store.rows for store in self.stores),
            "last_findings": {store: dict(counts) for store, counts in self.last_findings.items()},
            "filter": dict(self.filter),
            "layout": dict(self.layout),
            "stores": [store.as_json() for store in self.stores],
        }

    @classmethod
    def from_json(cls, told: Any, where: str) -> ExportState:
        """Parse a state written by ``as_json``. Raises FailedError or UsageError for one that cannot be continued."""
        try:
            if told.get("what"):
                raise UsageError(
                    f"the export there is one of {told['what']}, not of messages",
                    path=where,
                    to_do="name another folder, or replace it with --overwrite",
                )
            versions = (told["format"], told.get("manifest_version"), told["schema_version"])
            if versions == (FORMAT, MANIFEST_VERSION, schema.VERSION):
                stores = tuple(StoreState.from_json(store) for store in told["stores"])
                met = {store: dict(counts) for store, counts in told.get("last_findings", {}).items()}
                return cls(
                    int(told["commit"]), str(told["id"]), dict(told["filter"]), dict(told["layout"]), stores, met
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FailedError(
                "what the last export left cannot be read", path=where, to_do="export again with --overwrite"
            ) from error
        raise FailedError(
            "another version of rmqctl made this export", path=where, to_do="go on with that one, or --overwrite"
        )

    def after(
        self, number: int, id: str, added: Sequence[StoreState], untold: Mapping[str, Mapping[str, int]]
    ) -> ExportState:
        """Return the state after a commit. ``untold``: findings of earlier commits, by store and code, that no report
        has shown.
        """
        known = {state.store: state for state in self.stores}
        for state in added:
            known[state.store] = known[state.store].concat(state) if state.store in known else state
        met = {store: dict(counts) for store, counts in untold.items()}
        for state in added:
            if state.findings:
                met[state.store] = _sum(met.get(state.store, {}), state.findings)
        return ExportState(number, id, self.filter, self.layout, tuple(known.values()), met)


def filter_as_json(wanted: LogFilter) -> dict[str, Any]:
    """Return the filter as JSON values."""
    fields = asdict(wanted)
    names = ("from_phy_offset", "to_phy_offset", "begin_ms", "end_ms")
    return {**{name: fields[name] for name in names}, "topics": sorted(wanted.topics)}
