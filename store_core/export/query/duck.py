"""A query by DuckDB over tables that are read where they are. Nothing else can be reached: no file, no network, no setting."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar

import pyarrow as pa

from store_core.errors import UsageError
from store_core.export.query.catalog import NAMES, Tables
from store_core.export.query.complaints import complaint
from store_core.export.query.dataset import Scanner, TableDataset
from store_core.export.tables.table import Batches
from store_core.extras import not_installed
from store_core.storage.scratch import scratch_folder

MEMORY_BYTES: Final = 1 << 30
_BATCH_ROWS: Final = 8192
_MOST_THREADS: Final = 256  # a machine gives no endless number of them
_SCAN: Final = "PYTHON_ARROW_SCAN"
_AGAIN_SECONDS: Final = 0.05
_OWN: Final = (
    "select table_name from duckdb_tables() where not temporary"
    " union all select view_name from duckdb_views() where not temporary and not internal"
)
_RETURNING: Final = re.compile(r"\breturning\b", re.IGNORECASE)
_INNER: Final = re.compile(  # as types, not as names in front of one
    r"\b(?:BIT|BIGNUM|VARIANT|TIME WITH TIME ZONE)\b(?=[\[),]|$)"
)
# One body that is no text is null, and fails no query.
_DECODE: Final = (
    "CREATE MACRO decode(bytes) AS try(system.main.decode(bytes)), (bytes, how) AS try(system.main.decode(bytes, how))"
)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement as they come: batches of one schema, in which no two columns have the same name, and the
    columns' types as DuckDB names them."""

    schema: pa.Schema
    types: Sequence[str]
    batches: Batches


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a query's statements, one after the other: the next statement is carried out when it is asked for, and what
    has not been taken of the last one's rows is not to be had any more.

    ``count`` of them are to come, unless one fails. Statements without rows, as CREATE, are carried out and left out.
    """

    count: int
    _answers: Iterator[Answer]

    def __iter__(self) -> Iterator[Answer]:
        return self._answers


@contextmanager
def answered(
    query: str, tables: Tables, *, zone: str = "UTC", memory_bytes: int = MEMORY_BYTES, threads: int = 1
) -> Generator[Answers, None, None]:
    """Run a query of one or several statements; their rows can be taken within the context.

    Rows come while tables are read. What sorting and grouping hold beyond ``memory_bytes`` goes to files in the system's
    temporary folder, removed afterwards. ``zone`` is the name of the zone in which times are cut into days and hours. Raises UsageError for a query that cannot be understood or carried out, FailedError where DuckDB is missing
    or runs out of room, and whatever reading a table raises; also while the rows are taken.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise not_installed("duckdb", "sql") from error
    with scratch_folder("rmqctl-sql-") as folder:
        config: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_persistent_secrets": "false",
            "python_enable_replacements": "false",  # names of this program's variables are no tables
            "temp_directory": str(folder),
            "memory_limit": f"{memory_bytes}B",
            "threads": str(min(threads, _MOST_THREADS)),
        }
        with ExitStack() as opened:
            connection = opened.enter_context(duckdb.connect(config=config))
            engine = _Engine(connection, tables, opened)
            yield engine.answers(query, zone)


class _Engine:
    """A connection and the one thread that talks to it, so that the thread that waits for it can be told to stop."""

    def __init__(self, connection: Any, tables: Tables, opened: ExitStack) -> None:
        self._connection, self._tables, self._opened = connection, tables, opened
        self._scanners: list[Scanner] | None = None  # that were asked for, where they are not to read yet
        self._cause: BaseException | None = None  # what reading a table raised
        self._thread = opened.enter_context(ThreadPoolExecutor(1, "sql"))

    def answers(self, query: str, zone: str) -> Answers:
        self._do(lambda: self._prepare(query, zone))
        statements = self._do(lambda: self._connection.extract_statements(query))
        if not statements:
            raise UsageError("there is no query", to_do="give a SELECT")
        return Answers(self._do(lambda: sum(map(_shows, statements))), self._each(statements))

    def _each(self, statements: Sequence[Any]) -> Iterator[Answer]:
        for statement in statements:
            relation, reader = self._do(partial(self._run, statement))
            schema = _without_twins(reader.schema)
            self._opened.callback(reader.close)
            batches = self._batches(reader, schema)
            if _shows(statement):
                yield Answer(schema, [str(kind) for kind in relation.types], batches)
            for _ in batches:
                continue  # a statement counts as done when its rows have been taken
            if not _shows(statement):
                self._do(self._refuse_namesakes)
        if not any(map(_shows, statements)):
            raise UsageError("no statement of the query gives rows", to_do="give a SELECT")

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Batches:
        while (batch := self._do(lambda: next(reader, None))) is not None:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _prepare(self, query: str, zone: str) -> None:
        # Shut when the database is open: what is shut while it opens leaves files with its own name, `:memory:`, reachable.
        self._connection.execute("SET allowed_paths = []")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute(_DECODE)
        self._connection.execute("SET TimeZone = '{}'".format(zone.replace("'", "''")))
        self._connection.execute("SET enable_progress_bar = false")  # it goes to stdout, piped or not
        turns = Lock()
        for name, table in self._tables.named_in(query):
            self._connection.register(name, TableDataset(table, turns, self._note, self._reads))
        self._connection.execute("SET lock_configuration = true")

    def _run(self, statement: Any) -> tuple[Any, pa.RecordBatchReader]:
        relation = self._connection.sql(statement)
        if statement.type.name == "SELECT" and _is_scan(relation):
            # DuckDB would hand on what it is given, and take longer over it than reading does.
            scanners = self._scanners = []
            schema = _in_words(relation).to_arrow_reader(_BATCH_ROWS).schema
            self._scanners = None
            if len(scanners) == 1:
                return relation, scanners[0].to_reader(schema)
        return relation, _in_words(relation).to_arrow_reader(_BATCH_ROWS)

    def _reads(self, scanner: Scanner) -> bool:
        """Whether DuckDB is to read what it asks for."""
        if self._scanners is None:
            return True
        self._scanners.append(scanner)
        return False

    def _refuse_namesakes(self) -> None:
        """A table of one's own with the name of one that is read would be there, and never be asked."""
        own = self._connection.execute(_OWN).fetchall()
        if twice := [name for (name,) in own if name.lower() in NAMES]:
            raise UsageError(f"{twice[0]} is a table that is there already", to_do="give yours another name")

    def _note(self, error: BaseException) -> None:
        self._cause = self._cause or error

    def _do(self, work: Callable[[], Result]) -> Result:
        """Have the thread do something. Who is interrupted while waiting for it interrupts it."""
        future = self._thread.submit(work)
        try:
            while not future.done():
                wait([future], _AGAIN_SECONDS)  # a signal that reaches another thread does not end a wait
        except BaseException:
            self._tables.stop()
            while not future.done():
                self._connection.interrupt()  # means nothing to a query that has not begun
                wait([future], _AGAIN_SECONDS)
            raise
        try:
            return future.result()
        except Exception as error:
            if self._cause is not None:
                raise self._cause from None
            raise complaint(error) from error


def _shows(statement: Any) -> bool:
    """Whether a statement has rows to show, as far as can be told before it is carried out."""
    expected = {kind.name for kind in statement.expected_result_type}
    if "CHANGED_ROWS" not in expected:
        return "QUERY_RESULT" in expected
    return statement.type.name == "MULTI" or ("NOTHING" not in expected and bool(_RETURNING.search(statement.query)))


def _is_scan(relation: Any) -> bool:
    """Whether the plan is nothing but reading columns of one table, and rows by a condition that the table is given."""
    [root, *others] = json.loads(relation.explain("standard", "json"))
    return root["name"] == _SCAN and not root["children"] and not others


def _in_words(relation: Any) -> Any:
    """A relation whose columns of types that Arrow knows only as DuckDB's inner bytes, or without their zone, are text instead."""
    kinds = [str(kind) for kind in relation.types]
    columns = []
    for number, (kind, name) in enumerate(zip(kinds, relation.columns, strict=True), 1):
        text, quoted = _INNER.sub("VARCHAR", kind), name.replace('"', '""')
        columns.append((f"#{number}" if text == kind else f"CAST(#{number} AS {text})") + f' AS "{quoted}"')
    return relation.project(", ".join(columns)) if any(map(_INNER.search, kinds)) else relation


def _without_twins(schema: pa.Schema) -> pa.Schema:
    """A schema in which a name that stands there already gets a number behind it."""
    taken: dict[str, pa.Field] = {}
    for field in schema:
        number, name = 1, field.name
        while name in taken:
            number, name = number + 1, f"{field.name}_{number}"
        taken[name] = field.with_name(name)
    return pa.schema(list(taken.values()))
