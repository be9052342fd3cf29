"""List the codes of Q: queues."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import REBUILD_QUEUES, Kind

KINDS: Final = (
    Kind(
        "Q001",
        "error",
        "queue entry without a record",
        "The entry points to a place in the log where no good record starts.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q002",
        "error",
        "queue entry of another queue's record",
        "The entry points to a record of another topic or queue; consumers get foreign messages.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q003",
        "error",
        "queue entry with a wrong size",
        "The entry's size is not the record's. Consumers lose the rest of a pulled batch, or die.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q004",
        "error",
        "queue entry at the wrong place",
        "The record's queue offset is not the entry's number: queue and record have drifted apart.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q005",
        "warning",
        "queue entry with a wrong tags code",
        "The entry's tags code is not the record's; consumers that filter by tag miss the message, or it is delivered at the wrong time.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q006",
        "error",
        "record without a queue entry",
        "A message of the log is missing from its queue; consumers never see it.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q007",
        "error",
        "queue file of the wrong length",
        "The file's length is not the queue file size. A broker refuses to start.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q008",
        "error",
        "hole in a queue",
        "Entries of size 0 with good ones after them. A broker stops reading there and may delete the later files.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q009",
        "warning",
        "entries after the end of a queue",
        "Bytes after the queue's end that a later start may take for entries.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q010",
        "error",
        "queue ends with fillers",
        "The last entry is a filler: a broker takes 2 GiB for this queue's end and drops every message below it.",
        REBUILD_QUEUES,
    ),
    Kind("Q011", "error", "queue entry beyond the log", "The entry points beyond the end of the log.", REBUILD_QUEUES),
    Kind("Q012", "error", "missing queue file", "A file of the queue's sequence is missing.", REBUILD_QUEUES),
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
        "An entry in place of a lost message; a broker skips it.",
        "Nothing to do.",
    ),
    Kind(
        "Q015",
        "error",
        "queues are kept in RocksDB",
        "This store keeps its queues in RocksDB, which this version does not read.",
        "Commands on the log (log, get, verify-crc, export of messages and stats) work; queue commands do not.",
    ),
    Kind(
        "Q016",
        "error",
        "damaged ConsumeQueueExt unit",
        "A tags code is an address in ConsumeQueueExt that has no good unit.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q017",
        "warning",
        "queue file without an entry",
        "A file of zeros after the queue's end. If it starts right at the end, every broker takes its first place for an entry at its next start: "
        "no message ever gets that queue offset. Files further on are deleted then, but three of them move the queue's end.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q018",
        "error",
        "queue file cannot be read",
        "The system refuses to read the file or a part of it: a missing permission, or a failing disk. Its contents are in no result; all others are.",
        "Give the permission, or copy a failing disk with ddrescue and work on the copy; then run the command again. Queues follow from the log: `rmqctl rebuild queues` rebuilds them.",
    ),
    Kind(
        "Q019",
        "warning",
        "no queue among the queues",
        "A topic's or queue's folder whose name no broker writes (bytes that are not UTF-8, or a number like 007, which a broker looks for in the "
        "folder 7), or a file next to queue folders: brokers do not read it, and repairing commands leave it alone. Or a queue with a negative "
        "number: no client can send to it or pull from it; rmqctl reads its messages from the log alone.",
        "Give the folder its right name if that is free, else move it out of the store. One with a negative number does no harm.",
    ),
    Kind(
        "Q020",
        "warning",
        "removed while it was read",
        "The oldest files of a queue were removed while a command read it, as a broker removes expired ones. Entries that the command had not read yet are not in its result.",
        "Nothing is wrong with the queue. Run the command again to read the rest.",
    ),
    Kind(
        "Q021",
        "warning",
        "queue entry of another time",
        "The store time in a batch queue's entry, or in an entry's ConsumeQueueExt unit, is not its record's. A broker finds messages of a batch queue by these times: a look-up by time then finds another one.",
        REBUILD_QUEUES,
    ),
    Kind(
        "Q022",
        "info",
        "light queue has expired",
        "Records list a light topic (`%LMQ%$PARENT$LIGHT`) that has no queue, and its newest message is older than `lite.topic.expiration` of the parent topic: a 5.5 broker removes such a queue and its progress; the records stay under the parent.",
        "Nothing to do. `rebuild queues` and `recover` do not bring the queue back.",
    ),
    Kind(
        "Q030",
        "error",
        "damage in a compacted topic's log",
        "A file below compaction/compactionLog holds something that is no record, or a record that does not match its checksum. `check` does not report it, and no command repairs it. Once the commit log has expired, a compacted message is nowhere else.",
        "Export what can be read (`rmqctl export --what compaction`). As long as the commit log has the topic's messages, a broker makes the folder again if it is missing; else a replica has its own.",
    ),
)
