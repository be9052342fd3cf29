"""Help: from the table without loading anything, an example for each command, nothing that is not there."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import rmqctl.commands
from rmqctl.commands import COMMANDS, built_commands
from rmqctl.context import Context
from tests.rmqctl.calls import ARTIFICIAL, artificial, call, on_terminal

GROUPS = ["Look", "Read", "Check", "Mend", "Write", "Move", "Shell"]


def shown_commands(text: str) -> dict[str, list[str]]:
    """Command names by section of the plain help."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r"(\w[\w ]*):", line):
            current = sections.setdefault(heading[1], [])
        elif (row := re.match(r"  ([a-z][\w-]*)  ", line)) and sections:
            current.append(row[1])
    return {name: found for name, found in sections.items() if name in GROUPS}


def test_every_built_command_is_shown_in_its_group_and_no_other() -> None:
    shown = shown_commands(call("--help").out)
    assert shown == {
        group: names for group in GROUPS if (names := [n for n, e in built_commands().items() if e.group == group])
    }


def test_every_module_of_a_command_is_in_the_table() -> None:
    folder = Path(rmqctl.commands.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert modules == {entry.module for entry in built_commands().values()}
    assert len({entry.name for entry in COMMANDS}) == len(COMMANDS)


def test_the_groups_keep_their_order() -> None:
    assert list(dict.fromkeys(entry.group for entry in COMMANDS)) == GROUPS


@pytest.mark.parametrize("name", list(built_commands()))
def test_each_command_has_help_with_one_example_of_itself(name: str) -> None:
    entry = built_commands()[name]
    function = getattr(importlib.import_module(f"rmqctl.commands.{entry.module}"), entry.module)
    assert next(iter(inspect.signature(function, eval_str=True).parameters.values())).annotation is Context
    examples = re.findall(r"^Example: (.*)$", inspect.cleandoc(function.__doc__), re.MULTILINE)
    assert len(examples) == 1
    assert re.match(rf"rmqctl {name}( |$)", examples[0])
    assert entry.summary.endswith(".")


def test_help_is_the_same_by_any_of_its_names() -> None:
    full = call("--help")
    assert (full.code, full.err) == (0, "")
    assert call("-h").out == full.out == call().out
    assert call("checkpoint", "-h").out == call("checkpoint", "--help").out


def test_plain_help_when_piped() -> None:
    text = call("checkpoint", "--help").out
    assert text.startswith("Usage: rmqctl checkpoint [OPTIONS]\n")
    assert "\n  Example: rmqctl checkpoint -s /data/rocketmq/store\n" in text
    assert "\nGlobal options:\n" in text
    assert "[NAME=]PATH" in text
    assert "\x1b" not in text
    assert "╭" not in text


def test_rich_help_on_a_terminal() -> None:
    shown = on_terminal("--help")
    assert "╭─ Look ─" in shown.text
    assert "\x1b[1;36mcheckpoint" in shown.out
    command = on_terminal("checkpoint", "--help").text
    assert "Example: rmqctl checkpoint -s /data/rocketmq/store" in command
    assert "[NAME=]PATH" in command
    assert "╭─ Global options ─" in command


def test_no_colour_in_help_that_wants_none() -> None:
    for shown in (
        on_terminal("--no-color", "--help"),
        on_terminal("--help", NO_COLOR="1"),
        on_terminal("explain", "--help", "--no-color"),
    ):
        assert not re.search(r"\x1b\[[\d;]*3\d", shown.out)


def test_brackets_in_help_are_no_markup() -> None:
    assert "[brackets] included" in artificial("options", "--help").out
    assert "[brackets] included" in on_terminal("options", "--help", program=ARTIFICIAL).text
