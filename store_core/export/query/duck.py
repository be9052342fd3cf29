"""Run a query by DuckDB over tables of stores. The query can reach no file, network or setting."""

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
_MOST_THREADS: Final = 256  # a machine has a limited number
_SCAN: Final = "PYTHON_ARROW_SCAN"
_AGAIN_SECONDS: Final = 0.05
_OWN: Final = (
    "select table_name from duckdb_tables() where not temporary"
    " union all select view_name from duckdb_views() where not temporary and not internal"
)
_RETURNING: Final = re.compile(r"\breturning\b", re.IGNORECASE)
_INNER: Final = re.compile(  # as types, not as names before a type
    r"\b(?:BIT|BIGNUM|VARIANT|TIME WITH TIME ZONE)\b(?=[\[),]|$)"
)
# A body that is no text must become null and not fail the query.
_DECODE: Final = (
    "CREATE MACRO decode(bytes) AS try(system.main.decode(bytes)), (bytes, how) AS try(system.main.decode(bytes, how))"
)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement as a stream of batches with one schema.

    ``types`` are the columns' types as DuckDB names them. No two columns have the same name.
    """

    schema: pa.Schema
    types: Sequence[str]
    batches: Batches


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a query's statements, one after another.

    A statement is executed when its answer is requested; rows of the one before that were not taken are lost. There are ``count`` of them, unless one
    fails. Statements without rows, such as CREATE, are executed and left out.
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

    Rows are produced while tables are read. Sorting and grouping beyond ``memory_bytes`` use files in the system's temporary folder, which are
    removed afterwards.

    Args:
        zone: The name of the time zone in which times are cut into days and hours.

    Raises:
        UsageError: The query cannot be parsed or executed.
        FailedError: DuckDB is missing or runs out of room.
        Exception: Any error of reading a table, also while the rows are taken.
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
            "python_enable_replacements": "false",  # otherwise a query could name this program's variables as tables
            "temp_directory": str(folder),
            "memory_limit": f"{memory_bytes}B",
            "threads": str(min(threads, _MOST_THREADS)),
        }
        with ExitStack() as opened:
            connection = opened.enter_context(duckdb.connect(config=config))
            engine = _Engine(connection, tables, opened)
            yield engine.answers(query, zone)


class _Engine:
    """A connection and the only thread that uses it, so that a waiting thread can interrupt it."""

    def __init__(self, connection: Any, tables: Tables, opened: ExitStack) -> None:
        self._connection, self._tables, self._opened = connection, tables, opened
        self._scanners: list[Scanner] | None = None  # scanners requested by DuckDB while they must not read yet
        self._cause: BaseException | None = None  # the error of reading a table
        self._thread = opened.enter_context(ThreadPoolExecutor(1, "sql"))

    def answers(self, query: str, zone: str) -> Answers:
        self._do(lambda: self._prepare(query, zone))
        statements = self._do(lambda: self._connection.extract_statements(query))
        if not statements:
            raise UsageError("there is no query", to_do="give a SELECT")
        return Answers(self._do(lambda: sum(map(_has_rows, statements))), self._each(statements))

    def _each(self, statements: Sequence[Any]) -> Iterator[Answer]:
        for statement in statements:
            relation, reader = self._do(partial(self._run, statement))
            schema = _with_unique_names(reader.schema)
            self._opened.callback(reader.close)
            batches = self._batches(reader, schema)
            if _has_rows(statement):
                yield Answer(schema, [str(kind) for kind in relation.types], batches)
            for _ in batches:
                continue  # a statement is done only when its rows have been taken
            if not _has_rows(statement):
                self._do(self._refuse_namesakes)
        if not any(map(_has_rows, statements)):
            raise UsageError("no statement of the query gives rows", to_do="give a SELECT")

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Batches:
        while (batch := self._do(lambda: next(reader, None))) is not None:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _prepare(self, query: str, zone: str) -> None:
        # Set after the database is open: set while it opens, files with its own name, `:memory:`, would stay reachable.
        self._connection.execute("SET allowed_paths = []")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute(_DECODE)
        self._connection.execute("SET TimeZone = '{}'".format(zone.replace("'", "''")))
        self._connection.execute("SET enable_progress_bar = false")  # it goes to stdout, piped or not
        turns = Lock()
        for name, table in self._tables.named_in(query):
            self._connection.register(name, TableDataset(table, turns, self._keep_cause, self._reads))
        self._connection.execute("SET lock_configuration = true")

    def _run(self, statement: Any) -> tuple[Any, pa.RecordBatchReader]:
        relation = self._connection.sql(statement)
        if statement.type.name == "SELECT" and _is_scan(relation):
            # Skip DuckDB, which would only pass the rows on, slower than they are read.
            scanners = self._scanners = []
            schema = _with_text_columns(relation).to_arrow_reader(_BATCH_ROWS).schema
            self._scanners = None
            if len(scanners) == 1:
                return relation, scanners[0].to_reader(schema)
        return relation, _with_text_columns(relation).to_arrow_reader(_BATCH_ROWS)

    def _reads(self, scanner: Scanner) -> bool:
        """Return True if the scanner may read its table; else keep it for ``_run``."""
        if self._scanners is None:
            return True
        self._scanners.append(scanner)
        return False

    def _refuse_namesakes(self) -> None:
        """Raise UsageError for a user's table with the name of a store's table, because queries would not read it."""
        own = self._connection.execute(_OWN).fetchall()
        if twice := [name for (name,) in own if name.lower() in NAMES]:
            raise UsageError(f"{twice[0]} is a table that is there already", to_do="give yours another name")

    def _keep_cause(self, error: BaseException) -> None:
        self._cause = self._cause or error

    def _do(self, work: Callable[[], Result]) -> Result:
        """Run work in the thread and return its result. An interrupt of the wait interrupts the work."""
        future = self._thread.submit(work)
        try:
            while not future.done():
                wait([future], _AGAIN_SECONDS)  # short, because a signal to another thread does not end a wait
        except BaseException:
            self._tables.stop()
            while not future.done():
                self._connection.interrupt()  # repeated, because it has no effect before a query starts
                wait([future], _AGAIN_SECONDS)
            raise
        try:
            return future.result()
        except Exception as error:
            if self._cause is not None:
                raise self._cause from None
            raise complaint(error) from error


def _has_rows(statement: Any) -> bool:
    """Return True if a statement has rows to show, as far as this is known before it is executed."""
    expected = {kind.name for kind in statement.expected_result_type}
    if "CHANGED_ROWS" not in expected:
        return "QUERY_RESULT" in expected
    return statement.type.name == "MULTI" or ("NOTHING" not in expected and bool(_RETURNING.search(statement.query)))


def _is_scan(relation: Any) -> bool:
    """Return True if the plan only reads columns of one table, and rows by a condition that the table gets."""
    [root, *others] = json.loads(relation.explain("standard", "json"))
    return root["name"] == _SCAN and not root["children"] and not others


def _with_text_columns(relation: Any) -> Any:
    """Return the relation with text for columns whose types Arrow gets as DuckDB's inner bytes, or without their zone."""
    kinds = [str(kind) for kind in relation.types]
    columns = []
    for number, (kind, name) in enumerate(zip(kinds, relation.columns, strict=True), 1):
        text, quoted = _INNER.sub("VARCHAR", kind), name.replace('"', '""')
        columns.append((f"#{number}" if text == kind else f"CAST(#{number} AS {text})") + f' AS "{quoted}"')
    return relation.project(", ".join(columns)) if any(map(_INNER.search, kinds)) else relation


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema with a number after each repeated name."""
    taken: dict[str, pa.Field] = {}
    for field in schema:
        number, name = 1, field.name
        while name in taken:
            number, name = number + 1, f"{field.name}_{number}"
        taken[name] = field.with_name(name)
    return pa.schema(list(taken.values()))
