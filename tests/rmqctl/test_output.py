"""Seven formats of one result."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from rmqctl.commands import COMMANDS
from rmqctl.options import Format
from rmqctl.output.document import PAGE_ROWS
from rmqctl.output.formats import Output
from tests.rmqctl.artificial import HOSTILE
from tests.rmqctl.calls import ARTIFICIAL, ROOT, artificial, command, environment, on_terminal

ROWS = [{"queue_offset": n, "size_bytes": n * 1024, "store_timestamp_ms": n, "body": f"x{n}"} for n in range(3)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def emitted(output: Format, file: io.StringIO | None = None, **emit: Any) -> str:
    file = file or io.StringIO()
    Output(file, output).emit(emit.pop("document", {}), **emit)
    return file.getvalue()


def test_json_is_one_document_with_members_known_only_at_the_end() -> None:
    assert artificial("rows", "-o", "json").json == {"topic": "T", "messages": ROWS, "seen": 3}


def test_ndjson_csv_tsv_give_the_main_list() -> None:
    assert artificial("rows", "-o", "ndjson").lines == ROWS
    for output, delimiter in (("csv", ","), ("tsv", "\t")):
        read = list(csv.DictReader(io.StringIO(artificial("rows", "-o", output).out), delimiter=delimiter))
        assert read == [{key: str(value) for key, value in row.items()} for row in ROWS]


def test_plain_is_the_default_when_piped() -> None:
    assert artificial("rows").out.splitlines() == [
        "  queue_offset    size_bytes  store_timestamp           body",
        "             0             0  1970-01-01T00:00:00.000Z  x0",
        "             1          1024  1970-01-01T00:00:00.001Z  x1",
        "             2          2048  1970-01-01T00:00:00.002Z  x2",
    ]


def test_some_commands_pipe_ndjson() -> None:
    assert {entry.name for entry in COMMANDS if entry.piped == "ndjson"} == {"log", "dump-cq", "dump-index", "tail"}
    words = " ".join(command("flood", program=ARTIFICIAL))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -n 1"], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, check=True
    )
    assert json.loads(done.stdout) == {"queue_offset": 0, "size_bytes": 0, "store_timestamp_ms": 0, "body": "x0"}


def test_github_is_markdown() -> None:
    assert artificial("rows", "-o", "github", "--count", 1).out.splitlines() == [
        "|   queue_offset |   size_bytes | store_timestamp          | body   |",
        "|----------------|--------------|--------------------------|--------|",
        "|              0 |            0 | 1970-01-01T00:00:00.000Z | x0     |",
    ]


def test_table_is_the_default_on_a_terminal_with_sizes_for_people() -> None:
    shown = on_terminal("rows", program=ARTIFICIAL).out
    assert [line.split() for line in shown.splitlines() if "1970" in line] == [
        ["0", "0", "B", "1970-01-01T00:00:00.000Z", "x0"],
        ["1", "1.0", "KiB", "1970-01-01T00:00:00.001Z", "x1"],
        ["2", "2.0", "KiB", "1970-01-01T00:00:00.002Z", "x2"],
    ]


def test_findings_have_colours_and_advice_on_a_terminal_unless_unwanted() -> None:
    shown = on_terminal("gallery", program=ARTIFICIAL)
    assert shown.code == 3
    assert "\x1b[1;31merror" in shown.out
    assert "\x1b[36minfo" in shown.out
    assert shown.text.count("Run `rmqctl recover`") == 1
    assert "L001, S001  Run `rmqctl recover`" in shown.text
    assert "1.3 MiB" in shown.out
    for plain in (
        on_terminal("gallery", "--no-color", program=ARTIFICIAL),
        on_terminal("--no-color", "gallery", program=ARTIFICIAL),
        on_terminal("gallery", program=ARTIFICIAL, NO_COLOR="1"),
    ):
        assert "\x1b[1;31m" not in plain.out
        assert "\x1b[36m" not in plain.out
        assert "1.3 MiB" in plain.out


def test_the_zone_counts_for_people_and_never_for_scripts() -> None:
    assert "1970-01-01T08:00:00.001+08:00" in artificial("rows", "--tz", "+08:00").out
    assert "1970-01-01T08:00:00.001+08:00" in artificial("--tz", "Asia/Shanghai", "rows", "-o", "table").out
    assert artificial("rows", "--tz", "+08:00", "-o", "ndjson").lines == ROWS


@pytest.mark.parametrize("output", ["plain", "table", "github"])
def test_no_value_drives_a_terminal_through_a_pipe(output: str) -> None:
    result = artificial("hostile", "-o", output)
    assert not any((c < " " and c != "\n") or "\x7f" <= c <= "\x9f" or c == "\u202e" for c in result.out + result.err)
    assert r"a\x1b[31mred\x07\x9b2J\u202e" in result.out.replace("\n", "")
    assert result.code == 3


@pytest.mark.parametrize("output", ["table", "plain", "json", "ndjson", "csv", "tsv", "github"])
def test_no_value_drives_a_terminal(output: str) -> None:
    shown = on_terminal("hostile", "-o", output, "--no-color", program=ARTIFICIAL).out
    assert "\x1b[31m" not in shown
    assert not any("\x7f" <= c <= "\x9f" or c in "\x07\u202e" for c in shown)


def test_scripts_get_values_as_they_are() -> None:
    assert artificial("hostile", "-o", "json").json["rows"][0]["body"] == HOSTILE
    assert artificial("hostile", "-o", "ndjson").lines[0]["body"] == HOSTILE
    for output, delimiter in (("csv", ","), ("tsv", "\t")):
        [row] = csv.DictReader(io.StringIO(artificial("hostile", "-o", output).out, newline=""), delimiter=delimiter)
        assert row["body"] == HOSTILE
        assert json.loads(row["properties"]) == {"K": HOSTILE}
        assert json.loads(row["keys"]) == [HOSTILE, "k2"]


def test_markdown_cells_keep_to_their_columns() -> None:
    assert r"2J\u202e\|\n" in artificial("hostile", "-o", "github").out


def test_csv_takes_named_fields_and_leaves_out_what_a_row_lacks() -> None:
    rows = [{"a": None, "b": True}, {"a": 1, "c": 2.5}]
    assert emitted("csv", rows=rows, fields=("a", "b", "c")) == "a,b,c\n,true,\n1,,2.5\n"
    assert emitted("csv", rows=[], fields=("a", "b")) == "a,b\n"
    assert emitted("csv", rows=[]) == ""


def test_without_a_list_the_document_is_the_row() -> None:
    document = {"a": 1, "b": lambda: "late", "findings": []}
    assert emitted("ndjson", document=document) == '{"a": 1, "b": "late"}\n'
    assert emitted("plain", document=document) == "a  1\nb  late\n\nFindings\nnone\n"


def test_facts_stand_before_the_list() -> None:
    document = {"status": "FOUND", "rows": iter([{"n": 1}])}
    assert emitted("plain", document=document, rows="rows", facts=["status"]) == "status  FOUND\n\n  n\n  1\n"


def test_nothing_to_show_is_said() -> None:
    assert emitted("plain", document={"rows": []}, rows="rows") == "nothing to show\n"


@pytest.mark.parametrize("output", ["plain", "github", "table"])
def test_long_tables_come_in_pages_of_the_same_widths(output: Format) -> None:
    count = 2 * PAGE_ROWS + 5
    rows = ({"n": 10_000 + n, "wide": "w" * (20 if n == 3 else 1), "end": "e"} for n in range(count))
    lines = emitted(output, rows=rows, document={}).splitlines()
    body = [line for line in lines if line.rstrip(" |").endswith("e")]
    assert len(body) == count
    assert len({line.index("e") for line in body}) == 1
    assert len(lines) == count + {"plain": 1, "github": 2, "table": 2}[output]


@pytest.mark.product(3)
@pytest.mark.parametrize("output", ["json", "ndjson", "csv", "tsv", "plain", "github"])
def test_rows_are_never_collected(output: Format) -> None:
    class Nowhere(io.StringIO):
        def write(self, text: str) -> int:
            return len(text)

    def rows() -> Iterator[dict[str, Any]]:
        for n in range(20 * PAGE_ROWS):
            yield {"n": n, "body": f"{n:0500d}"}

    emitted(output, Nowhere(), document={"rows": rows()}, rows="rows")  # what is imported and cached stays
    tracemalloc.start()
    emitted(output, Nowhere(), document={"rows": rows()}, rows="rows")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 * PAGE_ROWS * 500 / 2


def test_live_rows_are_shown_at_once() -> None:
    flushed: list[int] = []

    class Counting(io.StringIO):
        def flush(self) -> None:
            flushed.append(len(self.getvalue().splitlines()))

    emitted("ndjson", Counting(), document={"rows": iter(ROWS)}, rows="rows", live=True)
    assert flushed == [1, 2, 3]


def test_utf8_whatever_the_locale_says() -> None:
    for env in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "latin-1"}):
        assert artificial("hostile", "-o", "json", **env).json["rows"][0]["body"] == HOSTILE


def test_unbuffered_python_still_writes_whole_documents() -> None:
    assert len(artificial("rows", "--count", 5000, "-o", "json", PYTHONUNBUFFERED="1").json["messages"]) == 5000


def test_a_table_stands_on_a_narrow_terminal_without_losing_text() -> None:
    shown = on_terminal("gallery", program=ARTIFICIAL, COLUMNS="40").text
    assert max(map(len, shown.splitlines())) <= 40
    assert "…" not in shown


def test_a_rows_own_order_of_keys_is_the_tables() -> None:
    assert emitted("csv", rows=[{"b": 1, "a": 2}]).splitlines()[0] == "b,a"
