"""List the codes of S: store layout."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import RECOVER, Kind

KINDS: Final = (
    Kind("S001", "info", "abort file present", "The last broker did not stop cleanly, or one is running.", RECOVER),
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
        "segment size not known",
        "The files have different lengths and no configuration names the size.",
        "Name the broker's properties file with `-c`.",
    ),
    Kind(
        "S004",
        "warning",
        "unfinished rmqctl journal",
        "An rmqctl was interrupted while it changed this store, or is still changing it; or its journal cannot be read. The next command that writes finishes or rolls back the change, within the root and the log folders it was called with (`-s`, `--commitlog`); it refuses a journal that names another place, a link, or a mode wider than the store's.",
        "Run the same command again, with the same `--commitlog` for a log outside the root: it finishes or rolls back. To give up a change you do not know, run `rmqctl undo --forget ID`, which changes nothing else. If the journal is damaged, its `kept/` holds the bytes as they were.",
    ),
    Kind(
        "S005",
        "warning",
        "index sizes not known",
        "Nothing proves the number of slots and entries, which is not stored: no index file has an entry in the slot of its hash whose record has the key, or files prove different numbers. Index files stay as they are; queries by key are answered from the log.",
        "Name maxHashSlotNum and maxIndexNum with `-c` (5000000 and 20000000 unless the broker is configured otherwise), then run `rmqctl rebuild index`.",
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
        "There is no log. A broker that starts on this deletes all queues. Not reported for a store that never had a message: its checkpoint is zeros, its log folder is empty, and it has no index, queue or progress.",
        "Check that the disk is mounted before a broker starts.",
    ),
    Kind(
        "S008",
        "error",
        "folder where a file should be, or the other way round",
        "An entry of the store has the wrong type.",
        "Move it away; if it is a link to an unmounted disk, mount that.",
    ),
    Kind(
        "S009",
        "warning",
        "queue file size assumed",
        "No queue file's length shows the size, or as many show another one, and no configuration names it; the default or the larger size was assumed. A broker refuses queue files of another length than its own.",
        "Name the broker's properties file with `-c`, with mappedFileSizeConsumeQueue in it if it is not the default; `recover --sibling` takes the size from a copy's files.",
    ),
    Kind(
        "S010",
        "warning",
        "log folder is missing",
        "A log folder that the configuration names does not exist: its segments are in no result. A broker that starts like this makes the folder and continues without them.",
        "Mount its disk before a broker starts; nothing is written meanwhile. If it should be empty, make the folder or take it out of the configuration.",
    ),
)
