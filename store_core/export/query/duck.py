"""Run a query by DuckDB over tables of stores. The query can reach no file, network or setting."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from store_core.errors import FailedError, StoreError, UsageError
from store_core.export.query.catalog import NAMES, Tables
from store_core.export.tables.table import Batches, Table, Where, schema_of
from store_core.extras import not_installed
from store_core.storage.scratch import scratch_folder

OnError = Callable[[BaseException], None]
Reads = Callable[["Scanner"], bool]


class TableDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table as a data set.

    ``reads`` gets each reading that DuckDB asks for, and returns whether it has rows. ``on_error`` gets an error of a reading, which DuckDB would
    only pass on as text.

    DuckDB's threads may read several tables at a time; ``turns`` admits one of them to the stores, whose descriptors are not shared.
    """

    def __init__(self, table: Table, turns: Lock, on_error: OnError, reads: Reads) -> None:
        # Dataset.__init__ is not called, because it is for data sets that Arrow's own code reads.
        self._table, self._turns, self._on_error, self._reads = table, turns, on_error, reads
        self._schema = schema_of(table.columns)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Scanner:
        """Return a reading of these columns, of rows for which the filter is true. DuckDB calls this for each reference."""
        names = list(self._schema.names if columns is None else columns)
        where = None if filter is None else Where(filter, self._schema)
        wanted = pa.schema([self._schema.field(name) for name in names])
        scanner = Scanner(self._table, wanted, where, self._turns, self._on_error)
        return scanner if self._reads(scanner) else replace(scanner, has_rows=False)


@dataclass(frozen=True, slots=True)
class Scanner:
    """A reading of a table, which can be repeated."""

    table: Table
    projected_schema: pa.Schema
    where: Where | None
    turns: Lock
    on_error: OnError
    has_rows: bool = True

    def to_reader(self, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
        """Return a reader of the batches. ``schema``: the same columns with the names and types that the caller wants."""
        if schema is None:
            return pa.RecordBatchReader.from_batches(
                self.projected_schema, self._batches() if self.has_rows else iter(())
            )
        return pa.RecordBatchReader.from_batches(schema, (_as_in(schema, batch) for batch in self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        batches = self.table.batches(self.projected_schema.names, self.where)
        try:
            while (batch := self._next(batches)) is not None:
                yield batch
        finally:  # also if a query stops early
            with self.turns:
                batches.close()

    def _next(self, batches: Generator[pa.RecordBatch, None, None]) -> pa.RecordBatch | None:
        try:
            with self.turns:
                return next(batches, None)
        except BaseException as error:
            self.on_error(error)
            raise


def _as_in(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with a schema that differs only in field names and time zones."""
    arrays = [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# After it: the query with a mark under it, or advice about settings, which are locked here.
_PLACE: Final = re.compile(r"\n\s*\n|\s*This limit was set by the|\s*This error signals an")
_KIND: Final = re.compile(r"((?:[A-Za-z-]+ ){1,4})Error: ")
_NO_TABLE: Final = re.compile(r"Table with name (.*?) does not exist!", re.DOTALL)
_NO_ROOM: Final = "failed to offload"  # to the temporary folder
_LONGEST: Final = 500
_SEE_TABLES: Final = "see `rmqctl sql --tables` for tables and columns"

# A pattern of DuckDB's text -> rmqctl's text and advice.
_BY_WORDS: Final = (
    (
        re.compile(
            rf"can only [a-z ]+ base table|can only modify view|(?:{'|'.join(NAMES)}) is not an table"
            rf'|existing object "(?:{"|".join(NAMES)})" is of type view',
            re.IGNORECASE,
        ),
        "the tables of the store, and views, can only be read",
        "give a SELECT, or make a table of your own from one",
    ),
    (
        re.compile(
            r'cannot access directory "[^"]*/extensions/|loading external extensions|.*: UPDATE_EXTENSIONS',
            re.IGNORECASE,
        ),
        "there are no extensions here",
        "nothing but the store can be reached",
    ),
)
# The kind before DuckDB's text -> the error's class and advice. All other errors are the query's fault.
_OTHERWISE: Final = (UsageError, "change the query")
_BY_KIND: Final[dict[str, tuple[type[StoreError], str]]] = {
    "Out of Memory": (FailedError, "give more --memory"),
    "IO": (FailedError, "see that the system's temporary folder has room"),
    "INTERNAL": (FailedError, "please report it"),
    "FATAL": (FailedError, "please report it"),
    "Binder": (UsageError, _SEE_TABLES),
    "Catalog": (UsageError, _SEE_TABLES),
    "Permission": (UsageError, "a query reads the tables of the store, and nothing else"),
}


def complaint(error: Exception) -> Exception:
    """Return the error to raise for DuckDB's, which Arrow may pass on as text; other errors are returned unchanged."""
    text = str(error)
    found = _KIND.match(text)
    if isinstance(error, StoreError) or found is None:
        return error
    if unknown := _NO_TABLE.match(text, found.end()):
        near = get_close_matches(unknown[1].lower(), NAMES, 1)
        to_do = f"did you mean {near[0]}? The tables are" if near else "the tables are"
        return UsageError(f"there is no table {unknown[1][:_LONGEST]}", to_do=f"{to_do} {', '.join(NAMES)}")
    for words, what, to_do in _BY_WORDS:
        if words.match(text, found.end()):
            return UsageError(what, to_do=to_do)
    error_type, to_do = _BY_KIND.get(found[1].strip(), _OTHERWISE)
    if _NO_ROOM in text:
        to_do = "give more --memory, or more room with TMPDIR"
    message = " ".join(_PLACE.split(text[found.end() :])[0].split())
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    is_word = not message[:2].isupper()  # SELECT is a keyword
    return error_type(message[:1].lower() + message[1:] if is_word else message, to_do=to_do)


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
