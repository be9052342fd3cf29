"""Findings: what is wrong with a store, said with a stable code, and the advice that goes with each code.

Codes are an interface: add to them, never change the meaning of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a code means (``title``, one line), how bad it is, what it says in full, and what to do."""

    code: str
    severity: Severity
    title: str
    explanation: str
    advice: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. ``file`` is relative to the store root; fields that do not apply are None."""

    code: str
    severity: Severity
    message: str
    file: str | None = None
    phy_offset: int | None = None
    size_bytes: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    advice: str = ""

    def as_json(self) -> dict[str, object]:
        """The FINDING object of the command line's contract."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "phy_offset": self.phy_offset,
            "size_bytes": self.size_bytes,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "message": self.message,
            "advice": self.advice,
        }


def _table(*kinds: Kind) -> dict[str, Kind]:
    return {kind.code: kind for kind in kinds}


_RECOVER = "Run `rmqctl recover` before a broker starts on this store; it shows what a broker would throw away and what can be kept."
_REBUILD_QUEUES = "Run `rmqctl rebuild queues` to build the queues anew from the log."
_REBUILD_INDEX = "Run `rmqctl rebuild index` to build the index anew from the log."

KINDS: Final = _table(
    # L: the log
    Kind(
        "L001",
        "error",
        "record with a wrong body checksum",
        "The record's structure is whole, but its stored body does not match its CRC-32. A broker that scans it at start cuts the log there and deletes every later file.",
        _RECOVER,
    ),
    Kind(
        "L002",
        "error",
        "damaged range",
        "Bytes that are no record and no blank, between good ones or at a place where a record should start.",
        _RECOVER,
    ),
    Kind(
        "L003",
        "error",
        "zeros inside the log",
        "A run of zero bytes with good records behind it, as a lost page leaves.",
        _RECOVER,
    ),
    Kind(
        "L004",
        "info",
        "torn tail",
        "The last write before a crash ends in the middle. That is how a crash looks, not corruption: a broker cuts it off and nothing acknowledged under synchronous flush is lost.",
        "Nothing to do; `rmqctl recover` clears it.",
    ),
    Kind(
        "L005",
        "warning",
        "stale records behind the tail",
        "Old records, whole, behind the end of the log: left-overs of a reused or cut file. A broker may take them back at a later start.",
        "Run `rmqctl recover`, which zeroes what lies behind the tail.",
    ),
    Kind(
        "L006",
        "error",
        "missing segment",
        "A segment of the sequence is not there. Brokers jump over the hole and never say so; queue entries into it cannot be read.",
        "Is a log folder missing (name the broker's properties file with `-c`)? Put the file back if there is a copy; else run `rmqctl recover`, which closes the hole.",
    ),
    Kind(
        "L007",
        "warning",
        "record with a wrong own offset",
        "The record's physical-offset field is not its position. Brokers do not look at it and keep the record.",
        "Message ids computed from the field will be wrong; nothing else is.",
    ),
    Kind(
        "L008",
        "error",
        "damaged blank",
        "The blank that closes a segment is damaged. A broker that scans it stops there and deletes every later file.",
        _RECOVER,
    ),
    Kind(
        "L009",
        "error",
        "segment of the wrong length",
        "The file's length is not the segment size. A broker refuses to start.",
        "Run `rmqctl recover`; if the size is configured, name it with `-c`.",
    ),
    Kind(
        "L010",
        "error",
        "foreign entry in the log folder",
        "Something in commitlog/ is no segment. A broker may refuse to start.",
        "Move it out of the folder.",
    ),
    Kind(
        "L011",
        "error",
        "property checksum does not match",
        "The record carries a property CRC and it is wrong: some byte of the record outside the body has changed.",
        "A broker only looks at it with forceVerifyPropCRC; compare the record with a copy.",
    ),
    Kind(
        "L012",
        "warning",
        "body cannot be decompressed",
        "The body's checksum may be right, but the compressed data cannot be read.",
        "The body is given as stored.",
    ),
    Kind(
        "L013",
        "error",
        "record size does not match its parts",
        "The record's length field is not the sum of its parts.",
        _RECOVER,
    ),
    Kind(
        "L014",
        "info",
        "empty segment",
        "A segment of only zeros: pre-allocated by a broker and never used.",
        "Nothing to do.",
    ),
    Kind(
        "L015",
        "info",
        "filler left by rmqctl",
        "A ROLLBACK record that closes a hole; consumers never see it.",
        "Nothing to do.",
    ),
    Kind(
        "L016",
        "info",
        "tombstone left by rmqctl",
        "A record that stands where a lost message was, so that every number stays; consumers see it with the property RMQCTL_TOMBSTONE.",
        "Nothing to do.",
    ),
    Kind(
        "L018",
        "warning",
        "two files for one segment",
        "The same segment stands in more than one log folder.",
        "Find out which one is right and move the other away.",
    ),
    Kind(
        "L019",
        "warning",
        "record without a store time",
        "The record's store time is 0 or negative. After a crash a broker cannot begin its scan at a segment whose first record is such a one; times looked up near it are wrong.",
        "Nothing to do for this record; a checkpoint that is older than the segment in front keeps brokers right.",
    ),
    # Q: queues
    Kind(
        "Q001",
        "error",
        "queue entry without a record",
        "The entry points to a place in the log where no good record starts.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q002",
        "error",
        "queue entry of another queue's record",
        "The entry points to a record of another topic or queue; consumers get foreign messages.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q003",
        "error",
        "queue entry with a wrong size",
        "The entry's size is not the record's. Consumers lose the rest of a pulled batch, or die.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q004",
        "error",
        "queue entry at the wrong place",
        "The record's queue offset is not the entry's number: queue and record have drifted apart.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q005",
        "warning",
        "queue entry with a wrong tags code",
        "The entry's tags code is not the record's; consumers that filter by tag miss the message, or it is delivered at the wrong time.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q006",
        "error",
        "record without a queue entry",
        "A message of the log is missing from its queue; consumers never see it.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q007",
        "error",
        "queue file of the wrong length",
        "The file's length is not the queue file size. A broker refuses to start.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q008",
        "error",
        "hole in a queue",
        "Entries of size 0 with good ones behind them. A broker stops reading there and may delete the files behind.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q009",
        "warning",
        "entries behind the end of a queue",
        "Bytes behind the queue's end that a later start may take for entries.",
        _REBUILD_QUEUES,
    ),
    Kind(
        "Q010",
        "error",
        "queue ends with fillers",
        "The last entry is a filler: a broker takes 2 GiB for this queue's end and drops every message below it.",
        _REBUILD_QUEUES,
    ),
    Kind("Q011", "error", "queue entry beyond the log", "The entry points behind the end of the log.", _REBUILD_QUEUES),
    Kind("Q012", "error", "missing queue file", "A file of the queue's sequence is not there.", _REBUILD_QUEUES),
    Kind(
        "Q013",
        "error",
        "foreign entry in a queue folder",
        "Something in the queue's folder is no queue file. A broker may refuse to start.",
        "Move it out of the folder.",
    ),
    Kind(
        "Q014",
        "info",
        "dead entry left by rmqctl",
        "An entry that skips a lost message; the broker passes over it.",
        "Nothing to do.",
    ),
    Kind(
        "Q015",
        "error",
        "queues are kept in RocksDB",
        "This store keeps its queues in RocksDB, which this version does not read.",
        "Commands on the log (log, get, verify-crc, export) work; queue commands do not.",
    ),
    Kind(
        "Q016",
        "error",
        "damaged ConsumeQueueExt unit",
        "A tags code is an address into ConsumeQueueExt, and there is no good unit.",
        _REBUILD_QUEUES,
    ),
    # I: index
    Kind(
        "I001",
        "error",
        "index entry without a record",
        "The entry points to a place in the log where no good record starts.",
        _REBUILD_INDEX,
    ),
    Kind(
        "I002",
        "error",
        "index entry of another key",
        "The entry's hash is no key of the record it points to.",
        _REBUILD_INDEX,
    ),
    Kind(
        "I003",
        "error",
        "broken index chain",
        "A slot or an entry points to an entry that cannot be: a chain that runs in a circle, forwards, or outside the file.",
        _REBUILD_INDEX,
    ),
    Kind(
        "I004",
        "warning",
        "key missing from the index",
        "A key of a record is not indexed although its file covers the record; queries by that key do not find it.",
        _REBUILD_INDEX,
    ),
    Kind(
        "I005",
        "error",
        "index file of the wrong length",
        "The length fits no number of slots and entries that is known. A broker extends or cuts it silently.",
        "Name the numbers with `-c` (maxHashSlotNum, maxIndexNum), or run `rmqctl rebuild index`.",
    ),
    Kind(
        "I006",
        "warning",
        "foreign entry in the index folder",
        "Something in index/ is no index file; brokers log and ignore a file, and refuse a folder.",
        "Move it out of the folder.",
    ),
    Kind(
        "I007",
        "warning",
        "index header does not fit",
        "The header's counts, times or offsets contradict the file's own entries.",
        _REBUILD_INDEX,
    ),
    Kind("I008", "info", "records behind the index", "The newest records are not indexed.", _REBUILD_INDEX),
    # C: checkpoint
    Kind(
        "C001",
        "warning",
        "no checkpoint",
        "The file is missing; after a crash a broker scans the whole log and deletes every index file.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
    Kind(
        "C002",
        "warning",
        "short checkpoint",
        "The file is shorter than its fields; missing ones count as 0.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
    Kind(
        "C003",
        "error",
        "checkpoint ahead of the log",
        "A time lies behind the newest record: after a crash a broker would scan too little.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
    Kind(
        "C004",
        "warning",
        "checkpoint not plausible",
        "A field is negative, or lies far from anything in the log.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
    # P: progress and config files
    Kind(
        "P001",
        "warning",
        "progress beyond the end of the queue",
        "A consumer group has consumed more than there is; at the next pull it is set back.",
        "Find out whether the queue lost its tail before consumers connect.",
    ),
    Kind(
        "P002",
        "warning",
        "topic without configuration",
        "The log or the queues know a topic that topics.json does not.",
        "Run `rmqctl rebuild topics`.",
    ),
    Kind(
        "P003",
        "warning",
        "config file read from its .bak",
        "The main file is missing, empty or broken; a broker reads the copy, which is older.",
        "Compare both; progress since the copy is lost.",
    ),
    Kind(
        "P004",
        "error",
        "config file cannot be read",
        "Neither the file nor its .bak can be parsed; a broker refuses to start or starts with nothing.",
        "Mend the JSON by hand, or remove both files to start empty on purpose.",
    ),
    Kind(
        "P005",
        "info",
        "progress before the queue's begin",
        "A consumer group has not consumed messages that have already expired.",
        "Nothing to do; the group will start at the queue's min.",
    ),
    Kind(
        "P006",
        "warning",
        "progress for an unknown topic",
        "A consumer group has progress in a topic that has no queue here.",
        "Nothing to do unless the topic was lost.",
    ),
    Kind(
        "P007",
        "warning",
        "delay progress out of range",
        "The delay level's progress lies outside its queue; a broker sets it to the nearest end.",
        "Nothing to do unless the queue lost its tail.",
    ),
    Kind(
        "P008",
        "info",
        "configuration is kept in RocksDB",
        "Topics, groups and progress of this store are in RocksDB databases, which this version does not read.",
        "What topics and groups there are is told by the log and the queues alone; use mqadmin on a running broker for the rest.",
    ),
    # S: store layout
    Kind("S001", "info", "abort file present", "The last broker did not stop cleanly, or one is running.", _RECOVER),
    Kind(
        "S002",
        "info",
        "a broker is running on this store",
        "The lock is held or files are open; what is read may change.",
        "Stop the broker before any command that writes.",
    ),
    Kind(
        "S003",
        "error",
        "segment size cannot be told",
        "The files have different lengths and no configuration names the size.",
        "Name the broker's properties file with `-c`.",
    ),
    Kind(
        "S004",
        "warning",
        "unfinished rmqctl journal",
        "An earlier rmqctl was interrupted while it changed this store.",
        "Run the same command again: it finishes or rolls back.",
    ),
    Kind(
        "S005",
        "warning",
        "index sizes assumed",
        "The number of slots and entries is not stored; the default proportion was assumed and could not be proven.",
        "Name maxHashSlotNum and maxIndexNum with `-c`.",
    ),
    Kind(
        "S006",
        "warning",
        "delay levels assumed",
        "The delay levels are not stored and could not be read off the delay queues; the defaults were assumed.",
        "Name messageDelayLevel with `-c`.",
    ),
    Kind(
        "S007",
        "error",
        "no log files",
        "There is no log. A broker that starts on this deletes all queues.",
        "Check that the disk is mounted before a broker starts.",
    ),
    Kind(
        "S008",
        "error",
        "folder where a file should be, or the other way round",
        "An entry of the store has the wrong type.",
        "Move it away.",
    ),
    Kind(
        "S009",
        "warning",
        "queue file size assumed",
        "There is no queue file whose length tells the size, and no configuration names it; the default was assumed. A broker that is configured otherwise refuses queue files of another length.",
        "Name the broker's properties file with `-c`, or mappedFileSizeConsumeQueue in it if it is not the default.",
    ),
)


def finding(
    code: str,
    message: str,
    *,
    file: str | None = None,
    phy_offset: int | None = None,
    size_bytes: int | None = None,
    topic: str | None = None,
    queue_id: int | None = None,
    queue_offset: int | None = None,
    severity: Severity | None = None,
) -> Finding:
    """A finding of a known code, with its severity and advice from the table."""
    kind = KINDS[code]
    return Finding(
        code,
        severity or kind.severity,
        message,
        file,
        phy_offset,
        size_bytes,
        topic,
        queue_id,
        queue_offset,
        kind.advice,
    )


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity among findings, None if there are none."""
    order: tuple[Severity, ...] = ("error", "warning", "info")
    present = {f.severity for f in findings}
    return next((s for s in order if s in present), None)


def summary(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings there are of each code, in code order."""
    return dict(sorted(Counter(f.code for f in findings).items()))
