"""List the codes of I: index."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import REBUILD_INDEX, Kind

KINDS: Final = (
    Kind(
        "I001",
        "error",
        "index entry without a record",
        "The entry points to a place in the log where no good record starts.",
        REBUILD_INDEX,
    ),
    Kind(
        "I002",
        "error",
        "index entry of another key",
        "The entry's hash is no key of the record it points to.",
        REBUILD_INDEX,
    ),
    Kind(
        "I003",
        "error",
        "broken index chain",
        "A slot or an entry points to an impossible entry: the chain runs in a circle, forwards, or outside the file.",
        REBUILD_INDEX,
    ),
    Kind(
        "I004",
        "warning",
        "key missing from the index",
        "A key of a record is not indexed although its file covers the record; queries by that key do not find it.",
        REBUILD_INDEX,
    ),
    Kind(
        "I005",
        "error",
        "index file of the wrong length",
        "The length fits no known number of slots and entries. A broker extends or cuts it silently.",
        "Name the numbers with `-c` (maxHashSlotNum, maxIndexNum), or run `rmqctl rebuild index`.",
    ),
    Kind(
        "I006",
        "warning",
        "foreign entry in the index folder",
        "Something in index/ is no index file; brokers log and ignore a file. 5.x refuses a folder whose name is a number, after it has recovered and cut the log.",
        "Move it out of the folder.",
    ),
    Kind(
        "I007",
        "warning",
        "index header does not fit",
        "The header's counts, times or offsets contradict the file's own entries.",
        REBUILD_INDEX,
    ),
    Kind("I008", "info", "records after the index", "The newest records are not indexed.", REBUILD_INDEX),
    Kind(
        "I009",
        "error",
        "index file cannot be read",
        "The system refuses to read the file: a missing permission, or a failing disk. Results lack some or all of its entries, but none of other files.",
        "Give the permission, or copy a failing disk with ddrescue and work on the copy; then run the command again. The index follows from the log: `rmqctl rebuild index` rebuilds it.",
    ),
    Kind(
        "I010",
        "warning",
        "index entry of another time",
        "The entry's time, seconds after its file's start, is not the store time of its record; a broker's queries by key and time miss the record, or find it in the wrong time range.",
        REBUILD_INDEX,
    ),
    Kind(
        "I011",
        "warning",
        "no index",
        "The log holds messages, and there is no index file: a broker's queries by key find none of them. A broker with messageIndexEnable=false makes none.",
        "Name the broker's properties file with `-c` if it keeps no index; else run `rmqctl rebuild index` to build it from the log.",
    ),
    Kind(
        "I012",
        "warning",
        "index sizes contradict the configuration",
        "The entries of an index file prove other numbers of slots and entries than the configuration names. The configured ones are used: a broker with them reads the file wrongly.",
        "See that `-c` names the properties file of this broker, with its maxHashSlotNum and maxIndexNum; then run `rmqctl rebuild index`.",
    ),
)
