"""List the commands, one small file each, and the table by which the command line finds them without importing them.

A command is a module here with a function of the module's name that takes a
:class:`rmqctl.context.Context` first and then its own parameters, annotated with ``typer.Option`` and
``typer.Argument``. It parses, calls the library once, emits, and returns the exit code. Its docstring is the help
text; the docstring's last paragraph starts with ``Example:``. Heavy libraries are imported inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

Topic = Literal["Look", "Read", "Check", "Mend", "Write", "Move", "Shell"]


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: its group and one line in ``--help``, its module, how it is shown when piped, how many stores it takes,
    and whether its result is columns."""

    name: str
    group: Topic
    summary: str
    piped: Literal["plain", "ndjson"] = "plain"
    several_stores: bool = False
    has_columns: bool = False  # with types, which parquet and arrow keep

    @property
    def module(self) -> str:
        """Return the name of the module in this package, and of the function in it."""
        return self.name.replace("-", "_")


COMMANDS: Final = (
    CommandEntry("info", "Look", "Show what a store holds and how it ended.", several_stores=True),
    CommandEntry("doctor", "Look", "Say how a store stands, why, and what to run next."),
    CommandEntry("log", "Look", "Show records of the log.", piped="ndjson"),
    CommandEntry("dump-cq", "Look", "Show the entries of a consume queue.", piped="ndjson"),
    CommandEntry("dump-index", "Look", "Show the entries of the index files.", piped="ndjson"),
    CommandEntry("checkpoint", "Look", "Show the checkpoint."),
    CommandEntry("config", "Look", "Show the JSON config files, typed."),
    CommandEntry("lag", "Look", "Show the lag of consumer groups."),
    CommandEntry("pull", "Read", "Read messages of a queue as a broker would answer."),
    CommandEntry("get", "Read", "Read one message by its id or offset."),
    CommandEntry("query-key", "Read", "Find messages by key."),
    CommandEntry("trace", "Read", "Show one message's way through a broker."),
    CommandEntry("tail", "Read", "Follow the log as it grows.", piped="ndjson"),
    CommandEntry("verify-crc", "Check", "Check every record of the log against its checksum.", several_stores=True),
    CommandEntry("check", "Check", "Compare log, queues, index, checkpoint and progress with each other."),
    CommandEntry("explain", "Check", "Explain finding codes."),
    CommandEntry("recover", "Mend", "Predict what a broker would do at its next start, and repair what it would lose."),
    CommandEntry("truncate", "Mend", "Cut the log at a record, and everything derived with it."),
    CommandEntry("rebuild", "Mend", "Rebuild queues, index, checkpoint or topics from the log."),
    CommandEntry("apply", "Mend", "Carry out a saved plan."),
    CommandEntry("undo", "Mend", "Bring back what a mending command changed."),
    CommandEntry("put", "Write", "Store a message."),
    CommandEntry("expire", "Write", "Remove the oldest segments, as a broker does after fileReservedTime."),
    CommandEntry("export", "Move", "Export messages to Parquet.", several_stores=True),
    CommandEntry("sql", "Move", "Query what stores hold with SQL.", several_stores=True, has_columns=True),
    CommandEntry("help", "Shell", "Show the help of a command."),
    CommandEntry("completion", "Shell", "Print the completion script of a shell."),
)


@cache
def built_commands() -> dict[str, CommandEntry]:
    """Return the commands by name, in the order of ``--help``."""
    return {entry.name: entry for entry in COMMANDS}
