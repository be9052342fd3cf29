"""L: the log."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import RECOVER, Kind

KINDS: Final = (
    Kind(
        "L001",
        "error",
        "record with a wrong body checksum",
        "The record's structure is whole, but its stored body does not match its CRC-32. A broker that scans it at start cuts the log there and deletes every later file.",
        RECOVER,
    ),
    Kind(
        "L002",
        "error",
        "damaged range",
        "Bytes that are no record and no blank, between good ones or at a place where a record should start.",
        RECOVER,
    ),
    Kind(
        "L003",
        "error",
        "zeros inside the log",
        "A run of zero bytes with good records behind it, as a lost page leaves.",
        RECOVER,
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
        "The record's physical-offset field is not its position: the field is damaged, or the record was written over others. Brokers do not look and keep it.",
        "Run `rmqctl recover`: its queue's entry and what lies at the other place tell which. It sets the field right, or the record goes, and what it lies over is told.",
    ),
    Kind(
        "L008",
        "error",
        "damaged blank",
        "The blank that closes a segment is damaged. A broker that scans it stops there and deletes every later file.",
        RECOVER,
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
        RECOVER,
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
    Kind(
        "L020",
        "warning",
        "removed before it was exported",
        "A broker has removed the oldest segments since the last commit of an incremental export, and that had not come so far. The messages in them are in no export.",
        "Export more often than brokers remove files (fileReservedTime); what is gone may be in a replica.",
    ),
    Kind(
        "L021",
        "error",
        "part of the log cannot be read",
        "The file is there, but the system refuses to read it, or a part of it: a missing permission, or a disk that fails. All the rest has been looked at; the messages in this range have not, and are in no result.",
        "Give the permission, or copy a failing disk with ddrescue and work on the copy; then run the command again. An export that is finished gets the range with `rmqctl export --from --to` into another folder, or with `--overwrite`.",
    ),
    Kind(
        "L022",
        "error",
        "number that no broker can read",
        "The level of a delayed message, or first number or count of an inner batch, is no number. A broker takes such a record for damaged: all of them the former, those from 5.0.0 on the latter too.",
        RECOVER,
    ),
    Kind(
        "L023",
        "error",
        "light queue without a number",
        "A record lists light queues, and for one of them something that is no number: by damage, or because a queue of another kind is among them. At each start that dispatches the record a broker fails: after a crash it does not load, else its start may wait for ever.",
        RECOVER,
    ),
)
