"""List the codes of P: progress and config files."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import Kind

KINDS: Final = (
    Kind(
        "P001",
        "warning",
        "progress beyond the end of the queue",
        "A group's progress is beyond the last message; at the next pull it is set back.",
        "Find out whether the queue lost its tail before consumers connect.",
    ),
    Kind(
        "P002",
        "warning",
        "topic without configuration",
        "The log or the queues hold a topic that topics.json lacks.",
        "Run `rmqctl rebuild topics`.",
    ),
    Kind(
        "P003",
        "warning",
        "config file read from its .bak",
        "The main file is missing, empty or broken, or holds a value of a type that no broker reads there; a broker reads the copy, which is older.",
        "Compare both: progress since the copy is lost. `rmqctl recover` makes the copy the file.",
    ),
    Kind(
        "P004",
        "error",
        "config file cannot be read",
        "Neither the file nor its .bak can be loaded: they are no JSON, or hold a value of a wrong type. A broker refuses to start or starts with nothing.",
        "Name another copy of the store with `rmqctl recover --sibling`, mend the JSON by hand, or remove both files to start empty on purpose.",
    ),
    Kind(
        "P005",
        "info",
        "progress before the queue's start",
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
        "The delay level's progress is outside its queue; a broker sets it to the nearest end.",
        "Nothing to do unless the queue lost its tail.",
    ),
    Kind(
        "P008",
        "info",
        "configuration is kept in RocksDB",
        "Topics, groups and progress of this store are in RocksDB databases, which this version does not read.",
        "Topics and groups are taken from the log and the queues alone; use mqadmin on a running broker for the rest.",
    ),
    Kind(
        "P009",
        "warning",
        "delay progress is lost",
        "delayOffset.json is missing while delay queues hold messages: a broker delivers all that are due a second time. A broker killed within "
        "its first ten seconds leaves a store so, too: with `abort` it is information.",
        "Run `rmqctl recover`: delivered messages are in the log twice, which shows where each level continues.",
    ),
    Kind(
        "P010",
        "warning",
        "config file is too large to be read here",
        "A config file is too large to be read in bounded memory. rmqctl takes it for good, as a broker may well read it, ignores its contents, "
        "and changes nothing in it.",
        "Look at the file itself, or ask a running broker with mqadmin; remove unused groups and topics.",
    ),
)
