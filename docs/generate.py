"""Writes the reference pages that follow from the code: commands, finding codes, byte layouts, tables.

python docs/generate.py          write them
python docs/generate.py --check  fail where a page is not what the code says
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import store_core.layout
from rmqctl.commands import built_commands
from store_core.export.query.catalog import NAMES, columns_of, described
from store_core.export.rows.schema import Column
from store_core.export.tables.stats import STATS_COLUMNS
from store_core.findings import KINDS
from store_core.kinds.kind import RECOVER
from store_core.layout.schema import Layout

DOCS = Path(__file__).parent
_AREAS = {
    "L": "the log",
    "Q": "queues",
    "I": "index files",
    "C": "the checkpoint",
    "P": "progress and config files",
    "S": "the store's layout",
    "X": "exports",
}


_SHORT_ADVICE = {RECOVER: "`rmqctl recover`"}
_ABOUT_TABLES = {
    "messages": """One row a record of the log, also of half messages, op messages, delayed ones and retries: `kind` names them, and `where kind = 'user'` leaves what
producers sent to topics of their own. An inner batch is one row. A record that `recover` wrote for a lost message has the kind `tombstone`; where
its place had no room for the mark it cannot be distinguished.

Text that is not UTF-8 has U+FFFD, as in Java. `properties` keep the record's order; of two with one name the last value counts, in the first one's place, and what has no
name or no value is left out, as brokers of 5.x read it. A body that inflates to more than 64 MiB is given as stored (L012).""",
    "quarantine": """One row a range of the log that is no record and no regular end of a segment. Zeros after the last record are not damage; a torn tail is, with the finding
L004, which does not end a command with 3. A record with a wrong body checksum is a row of `messages` with `crc` = `bad`.

| `reason` | Meaning |
|---|---|
| `magic` | no magic number where a record should start |
| `size` | the size there is too small, too large, or reaches beyond the segment |
| `length_mismatch` | the lengths of the record's parts do not add up to its size |
| `blank_size` | a blank that does not end where the segment does |
| `record_implausible` | a record by its form, with neither a right checksum nor a right own offset |
| `residue` | what follows zeros or stale records and is neither |
| `no_permission`, `io_error` | why a file cannot be read |""",
    "compaction": """One row a record that a broker keeps of a compacted topic (`cleanup.policy=COMPACTION`, 5.1 and later), from compaction/compactionLog. A broker keeps the newest of
each key there after the commit log has expired. An offset message id cannot be made. What is no record is reported as Q030.""",
    "queues": "One row an entry, from the first file's start to the queue's end, as `dump-cq` shows them.",
    "index": "One row an entry of an index file. Join `messages` on `phy_offset` for its key.",
    "offsets": "One row a group and queue: its progress, from the configuration and the queues' ends. An export's `groups/` has these columns.",
    "topics": "One row a topic of the configuration.",
    "groups": "One row a consumer group of the configuration.",
    "transactions": """One row a transaction: its half messages (the broker's copies belong to the first one), what became of it, and the op record, from the whole log and the check
service's progress. Those that a broker of 5.4 or later keeps in RocksDB (`transRocksDBEnable`) are missing.

| `state` | Because |
|---|---|
| `committed` | a commit record names it. Without `op_phy_offset` the broker had not yet recorded the end, and may ask again |
| `rolled_back` | an op record ends it, and no commit record names it |
| `given_up` | it was moved to `TRANS_CHECK_MAX_TIME_TOPIC`, or the broker has gone past it (4.3 moves none) |
| `pending` | nothing has ended it: the broker asks the producer again |
| `unknown` | it is ended or gone past, and a part of the log between cannot be read, where a commit record may have been; or more than a million were open at a time |""",
    "delayed": """One row a message that a broker still has to deliver: of each delay level from its progress in `delayOffset.json` on, of the timer (5.x) from `timercheck` on. Both are
saved some seconds late, so after a crash a message that was just delivered waits here too, as the broker will deliver it once more. POP consumers' check points are such
messages, for `rmq_sys_REVIVE_LOG_…`.""",
    "findings": "One row a finding of `rmqctl check` on the whole store, which runs when a query names this table.",
}

_ABOUT_STATS = """One row a topic, queue and hour; only in `rmqctl export --what stats`. `topics/` there has the same columns without `queue_id` and `hour`. All kinds but tombstones count.
A delayed message's latency includes its delay; a retry's starts with the first try, as both keep their born time. A latency of more than four years is a broken clock's
and not counted. Quantiles come from buckets at most 1/64 wide; sums, means, minima and maxima are exact."""


def findings_page() -> str:
    """Every finding code, what it means and what to do."""
    lines = [
        "# Finding codes",
        "",
        "`rmqctl explain CODE` prints a row. Codes are stable. A command that reports a *warning* or an *error* ends with 3.",
        f"Where the last column has a command alone, that is what helps; without `--apply` it only shows a plan. *{RECOVER}*",
        "",
    ]
    for area, kinds in groupby(KINDS.values(), key=lambda kind: kind.code[0]):
        lines += [f"## {area}: {_AREAS[area]}", "", "| Code | | Finding | Meaning | Do |", "|---|---|---|---|---|"]
        for kind in kinds:
            advice = _SHORT_ADVICE.get(kind.advice, kind.advice)
            advice = re.sub(r"^Run (`[^`]+`)( to rebuild the \w+ from the log)?\.$", r"\1", advice)
            lines.append(f"| {kind.code} | {kind.severity} | {kind.title} | {kind.explanation} | {advice} |")
        lines.append("")
    return "\n".join(lines)


def tables_page() -> str:
    """Every table of exports, SQL and Spark with its columns."""
    types = {(row["table"], row["column"]): row["type"] for row in described()}
    pairs = {str(c.type).replace("item: ", ""): types[name, c.name] for name in NAMES for c in columns_of(name)}
    lines = [
        "# Tables",
        "",
        "What a row and a column are in `rmqctl export` ([export.md](export.md)), `rmqctl sql` ([sql.md](sql.md)) and Spark's `rocketmq-store`",
        "([pipeline.md](pipeline.md)). `text` of `messages` and `compaction` is SQL's alone. Times are UTC in microseconds; brokers store milliseconds.",
        "",
        "| SQL | " + " | ".join(pairs.values()) + " |",
        "|---|" + "---|" * len(pairs),
        "| Parquet | " + " | ".join(f"`{parquet}`" for parquet in pairs) + " |",
        "",
    ]
    messages = {column.name: column for column in columns_of("messages")}
    for table in NAMES:
        columns = columns_of(table)
        lines += [f"## {table}", "", _ABOUT_TABLES[table], ""]
        if table == "compaction":
            names = {column.name for column in columns}
            lacking = ", ".join(f"`{name}`" for name in messages if name not in names)
            lines += [f"The columns of [`messages`](#messages) without {lacking}, and:", ""]
            columns = [column for column in columns if messages.get(column.name) != column]
        lines += _column_rows(columns, pairs)
    lines += ["## stats", "", _ABOUT_STATS, "", *_column_rows(STATS_COLUMNS, pairs)]
    return "\n".join(lines)


def _column_rows(columns: Sequence[Column], sql_types: dict[str, str]) -> Iterator[str]:
    yield "| column | type | null | meaning |\n|---|---|---|---|"
    for column in columns:
        parquet = str(column.type).replace("item: ", "")
        null = "yes" if column.nullable else ""
        yield f"| `{column.name}` | {sql_types.get(parquet, parquet.upper())} | {null} | {column.meaning} |"
    yield ""


def layouts() -> list[Layout]:
    """Every layout of store_core.layout, once each, in the order of modules and definitions."""
    found: list[Layout] = []
    for module in sorted(name for _, name, _ in pkgutil.iter_modules(store_core.layout.__path__)):
        members = vars(importlib.import_module(f"store_core.layout.{module}")).values()
        found += [m for m in members if isinstance(m, Layout) and m not in found]
    return found


def format_page() -> str:
    """Where every byte is."""
    lines = [
        "# Byte layouts",
        "",
        "All integers are big-endian. `sN` are N raw bytes. The tables are made from `store_core/layout/`.",
        "",
    ]
    for layout in layouts():
        lines += [f"## {layout.name[0].upper()}{layout.name[1:]} ({layout.size_bytes} bytes)", ""]
        lines += ["| offset | size | type | field | meaning |", "|---:|---:|---|---|---|"]
        for field in layout.fields:
            lines.append(
                f"| {layout.offset_of(field.name)} | {field.size_bytes} | {field.type} | `{field.name}` | {field.meaning} |"
            )
        lines.append("")
    return "\n".join(lines)


def commands_page() -> str:
    """The help of every command."""
    lines = [
        "# Commands",
        "",
        "What `rmqctl COMMAND --help` says. The global options, which every command has before or after its name, are listed once.",
        "",
    ]
    lines += ["```text", _help(), "```", ""]
    for name in built_commands():
        text = re.sub(r"\n\nGlobal options:\n(  .*\n?)+", "\n", _help(name)).rstrip()
        lines += [f"## {name}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def _help(*words: str) -> str:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
    command = [sys.executable, "-m", "rmqctl", *words, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=DOCS.parent)
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


PAGES: dict[str, Callable[[], str]] = {
    "findings.md": findings_page,
    "format.md": format_page,
    "commands.md": commands_page,
    "tables.md": tables_page,
}


def main() -> int:
    """Write or check all pages; 1 where a check fails."""
    stale = [name for name, page in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != page()]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is not what the code says: run python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
