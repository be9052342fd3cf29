"""Count records or statistics in a split without writing anything; ``export.statistics`` adds up the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

import numpy as np

from store_core.export.dest.parts import Range
from store_core.export.rows.batches import tombstones
from store_core.export.splits.plan import Task
from store_core.export.splits.split_task import Piece, SplitWork, run_work
from store_core.export.tables.stats import PartialStats, StatsBuilder
from store_core.kernel.codes import FrameCode
from store_core.scan.frames import FrameTable, Ints

What = Literal["records", "stats"]
_EVERYWHERE: Final = 1 << 63  # higher than any offset of a log
_BAD_CODES: Final = (FrameCode.BAD_CRC, FrameCode.BAD_PROPERTY_CRC)


@dataclass(frozen=True, slots=True)
class SurveyTask(Task):
    """A task that counts ``what`` in one split and writes nothing."""

    what: What = "records"

    def run(self) -> SurveyPiece:
        piece = run_work(lambda _: _SurveyWork(self), self.settings)
        assert isinstance(piece, SurveyPiece)
        return piece


@dataclass(slots=True)
class SurveyPiece(Piece):
    """The counts of one split.

    ``records`` counts messages, ``bad`` those with a wrong checksum, by the segment's file relative to the store
    root. ``stats`` is set where statistics were asked for.
    """

    records: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    stats: PartialStats | None = None


@dataclass(frozen=True, slots=True)
class Nowhere:
    """A place for tasks that write nothing."""

    def create(self, path: str) -> NoReturn:
        raise AssertionError(f"a survey writes {path}")

    def remove(self, staged: str) -> None:
        """Do nothing: no file was staged."""


class _SurveyWork(SplitWork):
    """The count of one split. No later run continues after it, so a last record that may still change is counted."""

    def __init__(self, task: SurveyTask) -> None:
        super().__init__(task, _EVERYWHERE)
        self._found = SurveyPiece(task.split)
        self._piece = self._found
        self._stats = StatsBuilder() if task.what == "stats" else None

    def take(self, table: FrameTable, rows: Ints, file: str) -> None:
        self._found.rows += len(rows)
        self._found.records[file] += len(rows)
        if table.code.any():
            self._found.bad[file] += int(np.count_nonzero(np.isin(table.code[rows], _BAD_CODES)))
        if self._stats is not None:
            self._stats.add(table, rows[~tombstones(table, rows)] if len(rows) else rows)

    def take_ranges(self, ranges: Sequence[Range]) -> None:
        """Do nothing: the ranges are findings already."""

    def finished(self) -> SurveyPiece:
        super().finished()
        if self._stats is not None:
            self._found.stats = self._stats.partial()
        return self._found
