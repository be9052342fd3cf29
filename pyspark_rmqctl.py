"""Makes ``spark.read.format("rocketmq-store")`` known to Spark, and is the program to hand to spark-submit.

Where rmqctl is installed, Spark finds this module by the first word of its name, and nothing has to be imported. ``import
pyspark_rmqctl`` works everywhere, with ``--py-files`` too: it registers the source with the session at work and with those that
are made later.

    spark-submit [options] pyspark_rmqctl.py export DEST -s STORE…    rmqctl export --spark in what spark-submit has started
    python -m pyspark_rmqctl sources FILE.zip                         for --py-files
    python -m pyspark_rmqctl environment FILE.tar.gz                  for --archives FILE.tar.gz#rmqctl_env
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import WeakSet
from zipimport import zipimporter

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from store_core.export.source.data_source import StoreSource

if isinstance(globals().get("__loader__"), zipimporter):
    # What Spark finds in --py-files by itself it does not send to executors: here there is nothing to find.
    warnings.warn(
        "executors get rmqctl's sources alone and run the kernel's Python twin, which is many times slower: "
        "send a packed environment with --archives instead, or install rmqctl there",
        RuntimeWarning,
        stacklevel=2,
    )
else:
    DefaultSource = StoreSource


_told: WeakSet[SparkSession] = WeakSet()


def register(session: SparkSession) -> None:
    """Make the source known to a session; nothing happens where it is."""
    if session in _told:  # Spark warns of whom it is told of twice
        return
    try:
        session.dataSource.register(StoreSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark has found it by itself
            raise
    _told.add(session)


def parquet_options() -> dict[str, str]:
    """For ``DataFrame.write.options`` where Spark itself writes messages into Parquet files: zstd-1; dictionaries only where they
    pay off, as in an export's files; bounds only of numbers, times and ids, for in the log's order a row group holds what
    recurs from its least value to its largest, and its dictionary tells which; no counts of sizes, no checksums of pages; pages of version 2.
    Spark's own choice takes longer. Who reads with Spark before 3.3 leaves out ``parquet.writer.version``."""
    from store_core.export.rows.schema import DICTIONARY_PATHS, NO_STATISTICS_PATHS

    wanted = {f"parquet.enable.dictionary#{path}": "true" for path in DICTIONARY_PATHS}
    unwanted = {
        f"parquet.column.statistics.enabled#{path}": "false" for path in (*NO_STATISTICS_PATHS, *DICTIONARY_PATHS)
    }
    return {
        "compression": "zstd",
        "parquet.compression.codec.zstd.level": "1",
        "parquet.writer.version": "v2",
        "parquet.page.write-checksum.enabled": "false",
        "parquet.size.statistics.enabled": "false",
        "parquet.enable.dictionary": "false",
        **wanted,
        **unwanted,
    }


def _register_with_later_sessions() -> None:
    made = SparkSession.Builder.getOrCreate

    @wraps(made)
    def get_or_create(self: Any) -> SparkSession:
        session = made(self)
        register(session)
        return session

    SparkSession.Builder.getOrCreate = get_or_create  # type: ignore[method-assign]  # Spark tells nobody of new sessions


if (_active := SparkSession.getActiveSession()) is not None:
    register(_active)
_register_with_later_sessions()


def main(arguments: Sequence[str]) -> int:
    """The program. Gives the exit code."""
    match list(arguments):
        case ["export", *words]:
            from rmqctl.app import main as run

            return run(["export", "--spark", *words])
        case ["sources" | "environment" as what, file]:
            from store_core.errors import FailedError
            from store_core.export.runners.pack import save_environment, save_sources

            try:
                (save_sources if what == "sources" else save_environment)(Path(file))
            except FailedError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
