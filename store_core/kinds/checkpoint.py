"""List the codes of C: checkpoint."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import Kind

KINDS: Final = (
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
        "A time is after the newest record, or the queues' offset is at or beyond the log's end: after a crash a broker would scan too little.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
    Kind(
        "C004",
        "warning",
        "checkpoint not plausible",
        "A field is negative, or is far from anything in the log.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
    Kind(
        "C005",
        "warning",
        "checkpoint without a time",
        "The log or queue time is 0 although the log holds messages: a broker was killed before its first flush. After a crash it scans the whole log (5.4 and later: at most the ten newest files), as without a checkpoint. With 5.5 a queue time of 0 after a clean stop is no fault: it is set about a minute after the start.",
        "Run `rmqctl checkpoint --rebuild`.",
    ),
)
