"""List how releases differ in their treatment of a store: one row a feature, one column a run of releases.

The source is section 17 of the behaviour reference, and for 4.x before 4.9, which it lacks, the release tags themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, Final, Self, cast

from store_core.codec.config_fields import ConfigMembers
from store_core.codec.config_refusals import ConfigReader
from store_core.codec.lmq_topics import NO_LISTS_SINCE, NoLists
from store_core.errors import UsageError

_PATTERN: Final = re.compile(r"[vV]?(\d+)\.(\d+)(?:\.(\d+))?$")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A broker release."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``X.Y.Z``, or ``X.Y`` for the newest known release of that line.

        Raises:
            UsageError: the text is neither, or the line is before 4.3 or after 5.5, whose behaviour is not known here.
        """
        match = _PATTERN.fullmatch(text.strip())
        to_do = f"give a release from {RELEASES[0]} to {RELEASES[-1]}, such as 5.3.3"
        if match is None:
            raise UsageError(f"{text!r} is no broker version", to_do=to_do)
        major, minor = int(match[1]), int(match[2])
        line = [release for release in RELEASES if (release.major, release.minor) == (major, minor)]
        if not line:
            raise UsageError(f"nothing is known of broker {text}", to_do=to_do)
        return cls(major, minor, int(match[3]) if match[3] is not None else line[-1].patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def line(self) -> str:
        """``X.Y``."""
        return f"{self.major}.{self.minor}"


def _releases(text: str) -> tuple[Version, ...]:
    return tuple(Version(*map(int, name.split("."))) for name in text.split())


RELEASES: Final = _releases(
    "4.3.0 4.3.1 4.3.2 4.4.0 4.5.0 4.5.1 4.5.2 4.6.0 4.6.1 4.7.0 4.7.1 4.8.0"
    " 4.9.0 4.9.1 4.9.2 4.9.3 4.9.4 4.9.5 4.9.6 4.9.7 4.9.8"
    " 5.0.0 5.1.0 5.1.1 5.1.2 5.1.3 5.1.4 5.2.0 5.3.0 5.3.1 5.3.2 5.3.3 5.4.0 5.5.0 5.5.1"
)


class CleanStart(Enum):
    """The segment at which the scan after a clean stop starts (behaviour 3.2, 3.4)."""

    THIRD_LAST = "the third newest segment"
    QUEUE_END = "the newest segment whose name is not after the end of the queues"
    FIRST_RECORD = "the newest segment whose whole first record does not say it lies after the end of the queues"


class CrashStart(Enum):
    """The check of a segment's first record when a scan after a crash looks for its start (3.3, 3.4)."""

    HEADER = "magic and store time alone"
    WHOLE_RECORD = "the whole record with its checksum, and its store time"
    QUEUE_OFFSET = (
        "the whole record with its checksum, and its offset; without a queue offset in the checkpoint, its store time"
    )


class QueueCut(Enum):
    """The condition for cutting queues at the end that the scan of the log found (3.2)."""

    AFTER_CRASH = "always after a crash, never after a clean stop"
    END_AT_LOAD = "when the queues, as they were loaded, reach it"
    END_NOW = "when the queues reach it after the re-dispatch"


class MinOffsetSearch(Enum):
    """The search for a queue's min offset (11.3)."""

    LINEAR = "first entry of the first file at or after the log's start"
    BINARY = (
        "binary search in the first file; past the end if the last entry lies before the log's start;"
        " a newest file without an entry fails the load"
    )
    BINARY_WITH_EMPTY_NEWEST = "the same, but with a newest file without an entry the search goes on"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a release, one field a feature. Releases that behave alike are equal."""

    clean_start: CleanStart
    crash_start: CrashStart
    newest_segments_scanned: int  # at most; 0: no limit
    clean_start_dispatches: bool  # the scan re-dispatches records after the queues' end
    dispatches_from_queue_end: bool  # at start, and start waits until it has caught up (1.7)
    queue_cut: QueueCut
    queues_cut_first: bool  # order of the two cuts; the outcome is the same, a kill between them is not
    mismatch_is_record: bool  # a crash scan continues after a record whose parts do not add up to its size
    queue_end_is_start: bool  # a queue's end is its last record's start, not end
    min_offset_search: MinOffsetSearch
    empty_log_drops_queues: bool  # also after a clean stop
    odd_size_ends_list: bool  # a file of wrong length ends the list of files without an error; else loading fails
    folders_ignored: bool  # folders between the files of a sequence
    empty_last_deleted: bool  # a last file of length 0
    index_failure_stops: bool  # an index that cannot be loaded stops the start
    reads_v2: bool
    reads_v6_hosts: bool
    drops_parted_values: bool  # ignores a property whose value contains another separator
    bounds_size: bool  # compares TOTALSIZE with the readable bytes before it makes an array of that size
    refuses_negative_blanks: bool  # the log ends at a blank of negative size
    bounds_own_offset: bool  # knows checkCommitLogOffsetOnRecover
    scans_from_queue_offset: bool  # enableAcceleratedRecovery: after a crash, with queues in files
    verifies_property_crc: bool  # knows forceVerifyPropCRC
    batch_queues: bool
    reads_next_tags: bool  # a pull looks up the ext unit of one message more than it returns
    multi_dispatch: bool  # one record may get an entry in further queues (4.11)
    no_lists: NoLists  # topics whose records never get such entries
    passes_light_folders: bool  # skips queues of a list whose name is a path
    late_delay_table: bool  # the delay levels are not known yet while recovery re-dispatches
    timer_wheel: bool
    index_tags: bool
    deletes_damaged_config: bool
    config_reader: ConfigReader  # the parser of plain values in its JSON config files
    config_members: ConfigMembers  # the members that the types of these files have
    abort_tells_process: bool  # writes its process id to abort, and the old content to abort.bak


class Watched:
    """A release's behaviour that records which fields a start reads: releases with the same values take the same path."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """Return and record a field, and store it as an attribute, so that later reads cost no call."""
        answer = self.__dict__[name] = self._answers[name] = getattr(self._behaviour, name)
        return answer

    @property
    def behaviour(self) -> Behaviour:
        """This object, typed as the behaviour that a start takes."""
        return cast(Behaviour, self)

    def answered_otherwise(self, other: Behaviour) -> set[str]:
        """Return the names of the fields that a start read and that differ in ``other``."""
        return {name for name, answer in self._answers.items() if getattr(other, name) != answer}


# 4.5.0 has no tag to read; it has the values of 4.5.1, as both came with DLedger.
_NO: Final = False
_YES: Final = True
_C, _R, _Q, _M, _T, _J = CleanStart, CrashStart, QueueCut, MinOffsetSearch, ConfigMembers, ConfigReader

# fmt: off
# A row lists (first release, value); it holds until the next one.
_TABLE: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "clean_start":              (("4.3.0", _C.THIRD_LAST), ("5.3.2", _C.QUEUE_END), ("5.4.0", _C.FIRST_RECORD)),
    "crash_start":              (("4.3.0", _R.HEADER), ("5.4.0", _R.WHOLE_RECORD), ("5.5.0", _R.QUEUE_OFFSET)),
    "newest_segments_scanned":  (("4.3.0", 0), ("5.4.0", 10)),
    "clean_start_dispatches":   (("4.3.0", _NO), ("5.3.2", _YES)),
    "dispatches_from_queue_end": (("4.3.0", _NO), ("4.5.0", _YES), ("5.0.0", _NO)),
    "queue_cut":                (("4.3.0", _Q.AFTER_CRASH), ("4.3.2", _Q.END_AT_LOAD), ("5.4.0", _Q.END_NOW)),
    "queues_cut_first":         (("4.3.0", _NO), ("5.2.0", _YES)),
    "mismatch_is_record":       (("4.3.0", _YES), ("4.3.2", _NO)),
    "queue_end_is_start":       (("4.3.0", _YES), ("4.5.0", _NO)),
    "min_offset_search":        (("4.3.0", _M.LINEAR), ("5.0.0", _M.BINARY),
                                 ("5.5.0", _M.BINARY_WITH_EMPTY_NEWEST)),
    "empty_log_drops_queues":   (("4.3.0", _NO), ("4.5.0", _YES)),
    "odd_size_ends_list":       (("4.3.0", _YES), ("4.5.0", _NO), ("4.9.2", _YES), ("4.9.3", _NO)),
    "folders_ignored":          (("4.3.0", _NO), ("5.1.0", _YES)),
    "empty_last_deleted":       (("4.3.0", _NO), ("5.1.3", _YES)),
    "index_failure_stops":      (("4.3.0", _NO), ("5.0.0", _YES)),
    "reads_v2":                 (("4.3.0", _NO), ("5.1.0", _YES)),
    "reads_v6_hosts":           (("4.3.0", _NO), ("4.6.0", _YES)),
    "drops_parted_values":      (("4.3.0", _YES), ("4.9.1", _NO)),
    "bounds_size":              (("4.3.0", _NO), ("5.3.2", _YES)),
    "refuses_negative_blanks":  (("4.3.0", _NO), ("5.5.1", _YES)),
    "bounds_own_offset":        (("4.3.0", _NO), ("5.5.0", _YES)),
    "scans_from_queue_offset":  (("4.3.0", _NO), ("5.5.0", _YES)),
    "verifies_property_crc":    (("4.3.0", _NO), ("5.2.0", _YES)),
    "reads_next_tags":          (("4.3.0", _NO), ("5.0.0", _YES)),
    "batch_queues":             (("4.3.0", _NO), ("5.0.0", _YES)),
    "multi_dispatch":           (("4.3.0", _NO), ("4.9.3", _YES)),
    "no_lists":                 NO_LISTS_SINCE,
    "passes_light_folders":     (("4.3.0", _NO), ("5.1.3", _YES)),
    "late_delay_table":         (("4.3.0", _NO), ("4.9.2", _YES), ("5.0.0", _NO)),
    "timer_wheel":              (("4.3.0", _NO), ("5.0.0", _YES)),
    "index_tags":               (("4.3.0", _NO), ("5.4.0", _YES)),
    "deletes_damaged_config":   (("4.3.0", _NO), ("5.4.0", _YES)),
    # From the releases' own lists of dependencies; 4.9.4 went back to an older library.
    "config_reader":            (("4.3.0", _J.FASTJSON_29), ("4.3.2", _J.FASTJSON_51), ("4.6.0", _J.FASTJSON_61),
                                 ("4.9.0", _J.FASTJSON_76), ("4.9.4", _J.FASTJSON_61), ("5.1.0", _J.FASTJSON_76),
                                 ("5.4.0", _J.FASTJSON_2), ("5.5.0", _J.FASTJSON_2_59)),
    "config_members":           (("4.3.0", _T.V4), ("5.0.0", _T.V5), ("5.3.1", _T.V5_GROUPS)),
    "abort_tells_process":      (("4.3.0", _NO), ("5.0.0", _YES)),
}
# fmt: on


def _at(row: tuple[tuple[str, Any], ...], version: Version) -> Any:
    value = row[0][1]
    for first, later in row:
        if _releases(first)[0] <= version:
            value = later
    return value


@cache
def behaviour_of(version: Version) -> Behaviour:
    """Return the column of a release; a patch release newer than the known ones behaves as its line's newest."""
    return Behaviour(**{field.name: _at(_TABLE[field.name], version) for field in fields(Behaviour)})


def groups_of(versions: tuple[Version, ...]) -> list[tuple[Behaviour, tuple[Version, ...]]]:
    """Group releases by their behaviour, in order of the first of each group."""
    found: dict[Behaviour, list[Version]] = {}
    for version in versions:
        found.setdefault(behaviour_of(version), []).append(version)
    return [(behaviour, tuple(members)) for behaviour, members in found.items()]
