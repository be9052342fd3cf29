"""Writes the reference pages that follow from the code: commands, finding codes, byte layouts.

python docs/generate.py          write them
python docs/generate.py --check  fail where a page is not what the code says
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import store_core.layout
from rmqctl.commands import built_commands
from store_core.findings import KINDS
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


def findings_page() -> str:
    """Every finding code, what it means and what to do."""
    lines = ["# Finding codes", "", "`rmqctl explain CODE` prints the same. Codes are stable.", ""]
    for area, kinds in groupby(KINDS.values(), key=lambda kind: kind.code[0]):
        lines += [f"## {area}: {_AREAS[area]}", ""]
        for kind in kinds:
            lines += [
                f"### {kind.code} {kind.title} ({kind.severity})",
                "",
                kind.explanation,
                "",
                f"*{kind.advice}*",
                "",
            ]
    return "\n".join(lines)


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
        "What `rmqctl COMMAND --help` says. Global options may stand before or after the command.",
        "",
    ]
    lines += ["```text", _help(), "```", ""]
    for name in built_commands():
        lines += [f"## {name}", "", "```text", _help(name), "```", ""]
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
