"""Rows that the kernel writes as text: the same bytes as one by one, and each batch at once."""

from __future__ import annotations

import hashlib
import io
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.options import Format
from rmqctl.output.formats import Output
from rmqctl.output.json_stream import JsonStream
from rmqctl.output.streams import UNENCODABLE
from store_core.kernel import is_native
from store_core.kernel.codes import TextKind
from store_core.kernel.text import RowBatch, TextColumn, between, numbers, one_by_one, ready, same, strings, words
from tests.conftest import GoldenStore
from tests.rmqctl.calls import ROOT, call

native = pytest.mark.skipif(not is_native(), reason="the compiled kernel was not built")

# What each command wrote when a Python dict was made of each row.
RECORDED: Final[dict[str, str]] = json.loads((Path(__file__).parent / "text_digests.json").read_text())
COMMANDS: Final = sorted({case.split(" ", 1)[1] for case in RECORDED})
FORMATS: Final[tuple[Format, ...]] = ("ndjson", "json", "csv", "tsv")
STORES: Final = sorted({case.split(" ", 1)[0] for case in RECORDED})
HOSTILE: Final = (
    "",
    '"',
    "\\",
    ",",
    "\t",
    "\r",
    "\n",
    "a\rb",
    "\x00\x01\x1f\x7f",
    "\u2028\u2029\x85",
    "é𝄞",
    "x" * 15 + '"',
    "x" * 40,
    "\ufffd",
)
RAW: Final = (b"\xff", b"\xed\xa0\x80", b"a\x80\xe2\x82", b"\xf0\x9d\x84", b"\x00\r\n")

texts = st.sampled_from(HOSTILE) | st.text(max_size=40)
raws = st.sampled_from(RAW) | st.binary(max_size=40) | texts.map(str.encode)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
uint64 = st.integers(0, (1 << 64) - 1)
floats = st.floats(width=64) | st.sampled_from((1e16, 1e15, 1e-4, 1e-5, -0.0, 5e-324, 123456789.125))
anything = st.none() | st.booleans() | st.integers() | texts | st.lists(st.integers(), max_size=2)


class File(io.TextIOWrapper):
    """What stdout is in a pipe."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=UNENCODABLE, newline="\n")

    @property
    def content(self) -> bytes:
        self.flush()
        found: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return found


def written(rows: Sequence[Any], output: Format, **emit: Any) -> bytes:
    file = File()
    Output(file, output).emit({"rows": iter(rows), "end": 1}, rows="rows", **emit)
    return file.content


def joined(parts: Sequence[bytes], kind: TextKind) -> TextColumn:
    return strings(between(np.cumsum([0, *map(len, parts)])), b"".join(parts), kind=kind)


def items(kind: TextKind, rows: Sequence[Sequence[Sequence[str]]]) -> TextColumn:
    """A column of lists or maps, whose items are one text or two."""
    width = 2 if kind is TextKind.MAP else 1
    placed = [joined([item[n].encode() for row in rows for item in row], TextKind.STRING) for n in range(width)]
    bounds = between(np.cumsum([0, *map(len, rows)]))
    return TextColumn(
        kind, (*bounds, *(n for each in placed for n in each.numbers)), tuple(each.data[0] for each in placed)
    )


def shown_body(raw: bytes) -> tuple[str, str]:
    try:
        return raw.decode(), "utf-8"
    except UnicodeDecodeError:
        return b64encode(raw).decode(), "base64"


def not_null(column: TextColumn, values: list[Any], valid: list[bool]) -> tuple[TextColumn, list[Any]]:
    mask = np.array(valid, np.bool_)
    shown = [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]
    return TextColumn(column.kind, column.numbers, column.data, mask, column.values), shown


class NoNumber:
    """As what a query gives for infinity and NaN."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    def as_json(self) -> None:
        return None


def number(value: float) -> Any:
    return value if np.isfinite(value) else NoNumber(value)


@st.composite
def batches(draw: st.DrawFn) -> tuple[RowBatch, list[dict[str, Any]]]:
    count = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    ints, uints, truth, reals = column(int64), column(uint64), column(st.booleans()), column(floats)
    strings_, bytes_, bodies, any_ = column(texts), column(raws), column(raws), column(anything)
    lists, maps = column(st.lists(texts, max_size=3)), column(st.dictionaries(texts, texts, max_size=3))
    few = draw(st.lists(texts, min_size=1, max_size=3))
    index = np.array(column(st.integers(0, len(few) - 1)), np.int32)
    one = draw(anything)
    body = joined(bodies, TextKind.BODY)
    made = (*body.numbers, np.zeros(count, np.bool_))
    shown = [shown_body(raw) for raw in bodies]
    known = {
        "int": (numbers(np.array(ints, np.int64)), ints),
        "uint": (numbers(np.array(uints, np.uint64)), uints),
        "bool": (numbers(np.array(truth, np.bool_)), truth),
        "float": (TextColumn(TextKind.FLOAT, (np.array(reals),)), [number(value) for value in reals]),
        "string": (joined([text.encode() for text in strings_], TextKind.STRING), strings_),
        "bytes": (joined(bytes_, TextKind.BYTES), bytes_),
        "body": (TextColumn(TextKind.BODY, made, body.data), [text for text, _ in shown]),
        "encoding": (TextColumn(TextKind.ENCODING, made, body.data), [encoding for _, encoding in shown]),
        "list": (items(TextKind.LIST, [[(text,) for text in row] for row in lists]), lists),
        "map": (items(TextKind.MAP, [list(row.items()) for row in maps]), maps),
        "words": (words(index, few), [few[n] for n in index.tolist()]),
        "same": (same(one), [one] * count),
        "ready": (ready(any_), any_),
    }
    names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
    chosen = {f'{name}"é': known[name] for name in names}
    nullable = draw(st.sampled_from(sorted(chosen)))
    if chosen[nullable][0].kind not in (TextKind.SAME, TextKind.READY):
        chosen[nullable] = not_null(*chosen[nullable], column(st.booleans()))
    rows = [{name: values[n] for name, (_, values) in chosen.items()} for n in range(count)]
    return RowBatch({name: column for name, (column, _) in chosen.items()}, count, lambda: iter(rows)), rows


@native
@pytest.mark.parametrize("output", FORMATS)
@given(batch=batches())
def test_a_batch_is_written_as_its_rows_are(output: Format, batch: tuple[RowBatch, list[dict[str, Any]]]) -> None:
    made, rows = batch
    assert written([made], output) == written(rows, output)
    mixed = [rows[0], made, made, *rows]
    assert written(mixed, output) == written(list(one_by_one(mixed)), output)


@native
@given(batch=batches(), first=st.integers(0, 4), count=st.integers(1, 5))
def test_part_of_a_batch(batch: tuple[RowBatch, list[dict[str, Any]]], first: int, count: int) -> None:
    made, rows = batch
    first = min(first, made.count - 1)
    some = rows[first : first + count]
    part = {name: column.part(first, first + len(some)) for name, column in made.columns.items()}
    assert written([RowBatch(part, len(some), lambda: iter(some))], "ndjson") == written(some, "ndjson")


@native
@pytest.mark.parametrize("output", ["csv", "tsv"])
def test_fields_that_a_batch_lacks_are_empty(output: Format) -> None:
    batch = RowBatch({"b": numbers(np.arange(3)), "c": same("x")}, 3, lambda: iter(()))
    rows = [{"b": n, "c": "x"} for n in range(3)]
    assert written([batch], output, fields=("a", "b")) == written(rows, output, fields=("a", "b"))


@native
@given(
    milliseconds=st.integers(-(1 << 53), 1 << 53) | st.integers(-63_000_000_000_000, 254_000_000_000_000),
    rest=st.integers(0, 999),
)
def test_times(milliseconds: int, rest: int) -> None:
    pytest.importorskip("pyarrow")
    from rmqctl.output.arrow_rows import _time_text

    for kind, in_zone in ((TextKind.MICROSECONDS, True), (TextKind.ZONELESS_MICROSECONDS, False)):
        units = milliseconds * 1000 + rest
        column = TextColumn(kind, (np.array([units]),))
        text = _time_text(units, False, np_zone(in_zone))
        assert written([RowBatch({"t": column}, 1, lambda: iter(()))], "csv") == f"t\n{text}\n".encode()
    nanoseconds = (milliseconds % (1 << 40)) * 1_000_000 + rest
    column = TextColumn(TextKind.NANOSECONDS, (np.array([nanoseconds]),))
    assert json.loads(written([RowBatch({"t": column}, 1, lambda: iter(()))], "ndjson")) == {
        "t": _time_text(nanoseconds, True, np_zone(True))
    }


def np_zone(in_zone: bool) -> Any:
    from datetime import UTC

    return UTC if in_zone else None


@native
def test_lists_within_lists_keep_their_margins() -> None:
    def document(rows: list[Any]) -> str:
        pieces: list[str] = []
        with JsonStream(pieces.append, lambda _: None) as stream:
            stream.member("results", [{"rows": iter(rows)}, {"rows": iter(rows)}])
        return "".join(pieces)

    rows = [{"n": 0}, {"n": 1}]
    batch = RowBatch({"n": numbers(np.arange(2))}, 2, lambda: iter(rows))
    assert document([batch, batch]) == document(rows + rows)


@native
def test_a_column_that_lacks_rows_is_refused() -> None:
    batch = RowBatch({"n": numbers(np.arange(2))}, 3, lambda: iter(()))
    with pytest.raises(ValueError, match="a column has not what its kind takes"):
        written([batch], "ndjson")


@native
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize(
    "pattern", [*RAW, b'{"a": "b\\\\c", "n": 12345678}', "é𝄞".encode() * 9 + b"\xf0\x9d", b"plain text"]
)
def test_texts_of_every_length(pattern: bytes, output: Format) -> None:
    parts = [(pattern * length)[:length] for length in (*range(100), 511, 512, 513, 4000)]
    bytes_, body = joined(parts, TextKind.BYTES), joined(parts, TextKind.BODY)
    made = TextColumn(TextKind.BODY, (*body.numbers, np.zeros(len(parts), np.bool_)), body.data)
    rows = [{"bytes": part, "body": shown_body(part)[0]} for part in parts]
    batch = RowBatch({"bytes": bytes_, "body": made}, len(parts), lambda: iter(rows))
    assert written([batch], output) == written(rows, output)


@native
@pytest.mark.parametrize("output", FORMATS)
def test_each_batch_is_there_before_the_next_is_asked_for(output: Format) -> None:
    file = File()
    sizes: list[int] = []

    def rows() -> Iterator[Any]:
        for _ in range(3):
            sizes.append(len(file.buffer.getvalue()))  # type: ignore[attr-defined]
            yield RowBatch({"n": numbers(np.arange(2))}, 2, lambda: iter(()))

    Output(file, output).emit({"rows": rows()}, rows="rows")
    assert sizes[0] < sizes[1] < sizes[2]


def test_the_first_rows_of_an_answer_come_alone() -> None:
    pa = pytest.importorskip("pyarrow")
    from rmqctl.output.arrow_rows import rows_of

    columns = [pa.array(range(5000)), pa.array([None, "text"] * 2500)]
    batches = list(rows_of([pa.RecordBatch.from_arrays(columns, ["n", "t"])] * 2))
    assert [batch.count for batch in batches] == [16, 128, 1024, 3832, 5000]
    assert [row["n"] for row in one_by_one(batches)] == [*range(5000), *range(5000)]


@native
@pytest.mark.parametrize("output", ["json", "ndjson", "csv"])
def test_a_terminal_sees_no_controls(output: Format) -> None:
    class Terminal(File):
        def isatty(self) -> bool:
            return True

    column = joined(["a\x85b\u2028".encode(), b"\x1b[31m"], TextKind.STRING)
    rows = [{"t": "a\x85b\u2028"}, {"t": "\x1b[31m"}]
    files = Terminal(), Terminal()
    for file, some in zip(files, ([RowBatch({"t": column}, 2, lambda: iter(rows))], rows), strict=True):
        Output(file, output).emit({"rows": iter(some)}, rows="rows")
    assert files[0].content == files[1].content
    assert b"\x1b" not in files[0].content
    assert "\u2028".encode() not in files[0].content


@pytest.mark.product
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", STORES)
def test_commands_write_what_they_wrote(name: str, command: str, golden: GoldenStore) -> None:
    root = ROOT / "sample_store" if name == "sample" else golden(name)
    *words_, output = command.split()
    assert digest(call(*words_, "-s", root, "-o", output).out) == RECORDED[f"{name} {command}"]


@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("words_", [("log", "--all"), ("dump-cq", "--all"), ("dump-index", "--max", "700")])
def test_without_the_kernel_the_bytes_are_the_same(
    output: Format, words_: tuple[str, ...], golden: GoldenStore
) -> None:
    words_ = (*words_, "-s", str(golden("cqext-533")), "-o", output)
    assert call(*words_).out == call(*words_, RMQCTL_KERNEL="python").out


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@native
@pytest.mark.parametrize(
    ("module", "name", "words_"),
    [
        ("store_core.read.message_json", "MessageView.as_json", ("log",)),
        ("store_core.read.dump", "_row", ("dump-cq", "--all")),
        ("store_core.read.index", "IndexRow._asdict", ("dump-index",)),
    ],
)
def test_no_row_is_made_by_itself(
    module: str,
    name: str,
    words_: tuple[str, ...],
    golden: GoldenStore,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from rmqctl.app import main

    def refuse(*_: object) -> None:
        raise AssertionError("a row by itself")

    monkeypatch.setattr(f"{module}.{name}", refuse)
    assert main([*words_, "-s", str(golden("load-533")), "-o", "ndjson"]) == 0
    assert len(capfd.readouterr().out.splitlines()) > 1000


def test_body_forms_are_those_of_single_messages(golden: GoldenStore) -> None:
    """Bodies that are compressed, broken or binary."""
    for view in ("", "--raw-body", "--no-body"):
        words_ = ("log", *filter(None, [view]), "-s", golden("load-533"), "-o", "ndjson")
        assert call(*words_).out == call(*words_, RMQCTL_KERNEL="python").out
