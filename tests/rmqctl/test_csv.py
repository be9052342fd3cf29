"""CSV and TSV: whatever a value holds, the csv module reads back what was there."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.options import Format
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import call
from tests.rmqctl.test_output import emitted

END: Final = -1  # stands for the end of the log
DELIMITERS: Final[dict[Format, str]] = {"csv": ",", "tsv": "\t"}
AWKWARD: Final = [
    "\r",
    "a\rb",
    "\ra",
    "a\r",
    "\r\n",
    "a\nb",
    '"',
    'a"b"',
    '"\r"',
    ",",
    "a\tb",
    " a ",
    "",
    "'",
    "\\",
    "\x85\u2028",
]


def read_back(text: str, output: Format) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=DELIMITERS[output]))


@pytest.mark.parametrize("output", DELIMITERS)
def test_awkward_values(output: Format) -> None:
    rows = [{"first": value, "second": value} for value in AWKWARD]
    assert read_back(emitted(output, rows=rows), output) == rows


@pytest.mark.parametrize("output", DELIMITERS)
@given(values=st.lists(st.text("\r\n\",\t x'\\;é", max_size=6), min_size=1, max_size=4))
def test_any_values(output: Format, values: list[str]) -> None:
    rows = [{"first": value, "second": "x"} for value in values]
    assert read_back(emitted(output, rows=rows), output) == rows


@pytest.mark.parametrize("output", DELIMITERS)
def test_a_message_with_awkward_bytes(output: Format, store_copy: StoreCopy) -> None:
    root, body, tag = store_copy("load-533"), 'one\rtwo\r\n"three",\t4', 'a\r"b'
    assert call("put", "Calm_orders", body, "--tags", tag, "--queue-id", "0", "-s", root).code == 0
    found = read_back(call("tail", "-n", "2", "-s", root, "-o", output).out, output)[-1]
    assert (found["body"], found["tags"]) == (body, tag)


def rows_as_json(output: Format, *words: object) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """The rows of a command as they are read back from ``output``, and as ``ndjson`` gives them."""
    return read_back(call(*words, "-o", output).out, output), call(*words, "-o", "ndjson").lines


@pytest.mark.parametrize("output", DELIMITERS)
def test_ranges_stand_beside_messages_whatever_comes_first(output: Format, store_copy: StoreCopy) -> None:
    store = Damageable(store_copy("load-533"), stores.truth("load-533"))
    store.flip(record=0, field="body")
    for options in ((), ("--from", 130000, "--to", 131072)):
        rows, told = rows_as_json(output, "log", "--all", "--no-body", "-s", store.root, *options)
        assert len(rows) == len(told) > 1
        for row, one in zip(rows, told, strict=True):
            assert set(one) <= set(row)
            assert {key: row[key] for key in ("kind", "code", "phy_offset", "topic")} == {
                key: str("" if one.get(key) is None else one[key]) for key in ("kind", "code", "phy_offset", "topic")
            }
    assert {"blank"} < {row["kind"] for row in rows_as_json(output, "log", "--all", "-s", store.root)[0]}


@pytest.mark.parametrize(("name", "more"), [("bcq-533", "batch_size"), ("cqext-533", "ext"), ("load-533", None)])
def test_entries_of_all_kinds_of_queues_have_all_columns(name: str, more: str | None, golden: GoldenStore) -> None:
    rows, told = rows_as_json("csv", "dump-cq", "--all", "--resolve", "-s", golden(name))
    assert len(rows) == len(told) > 1
    assert set(rows[0]) == set().union(*told) >= {"record", *([more] if more else [])}


NO_ROWS: Final = (
    ("check",),
    ("lag", "--group", "nobody"),
    ("log", "--topic", "nobody"),
    ("pull", "nobody", 0),
    ("query-key", "nobody", "nothing"),
    ("trace", "nothing"),
    ("tail", "-n", 0),
    ("dump-cq", "Calm_audit", 0, "--from", 999999),
    ("dump-index", "--slot", 999999),
)
SOME_ROWS: Final = (
    ("lag",),
    ("log", "--max", 1),
    ("pull", "Calm_audit", 0, "--max", 1),
    ("query-key", "Calm_audit", "shared9"),
    ("trace", "shared9"),
    ("tail", "-n", 1),
    ("dump-cq", "Calm_audit", 0, "--to", 1),
    ("dump-index", "--max", 1),
)


@pytest.mark.parametrize("words", NO_ROWS, ids=lambda words: words[0])
def test_no_rows_have_a_head_all_the_same(words: tuple[object, ...], golden: GoldenStore) -> None:
    empty = call(*words, "-s", golden("load-533"), "-o", "csv").out
    assert empty.count("\n") == 1
    for some in (some for some in SOME_ROWS if some[0] == words[0]):
        rows, told = rows_as_json("csv", *some, "-s", golden("load-533"))
        only_for_some = ["kind"] if words[0] == "log" else []  # of tombstones
        assert empty.rstrip("\n").split(",") == list(rows[0]) == [*told[0], *only_for_some]


MENDING: Final = {
    "recover": ("damage", ()),
    "truncate": ("", (END,)),
    "rebuild": ("queue", ("queues",)),
    "undo": ("change", ("--list",)),
}


@pytest.mark.leaves_damage("a queue file is made empty on purpose")
@pytest.mark.parametrize("command", MENDING)
def test_nothing_to_mend_has_a_head_too(command: str, golden: GoldenStore, damaged: DamagedStore) -> None:
    """The same as where there is something: rows of what is lost, of the plan's steps, of changes that are kept."""
    last = stores.truth("load-533")["messages"][-1]
    harm, words = MENDING[command]
    nothing = [last["phyOffset"] + last["storeSize"] if word == END else word for word in words]
    empty = call(command, *nothing, "-s", golden("load-533"), "-o", "csv").out
    assert empty.count("\n") == 1
    root = damaged("load-533", "flip-body-mid")
    if harm == "change":
        call("recover", "-s", root, "--apply")
    elif harm == "queue":
        (root / "consumequeue/Calm_audit/0/00000000000000000000").write_bytes(b"")
    something = [last["phyOffset"] if word == END else word for word in words]
    rows, told = rows_as_json("csv", command, *something, "-s", golden("load-533") if not harm else root)
    assert empty.rstrip("\n").split(",") == list(rows[0]) == list(told[0])
