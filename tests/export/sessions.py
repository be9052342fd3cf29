"""Spark sessions of tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_rmqctl import register
from store_core.export.runners.java import java_home
from store_core.export.runners.spark import DEFAULTS, LOCAL_DEFAULTS
from tests.export.spark_java import WITH_CLASSES, keep_classes

SMALL = {
    "spark.driver.memory": "512m",
    "spark.driver.defaultJavaOptions": WITH_CLASSES,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def spark_session(master: str = "local[2]", **conf: str) -> Iterator[SparkSession]:
    """A session of this process, stopped on leaving. ``conf``: settings with ``_`` for dots."""
    keep_classes()
    handler = signal.getsignal(signal.SIGINT)  # PySpark sets its own, for good
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.delenv("SPARK_HOME", raising=False)
        if (home := java_home()) is not None:
            patch.setenv("JAVA_HOME", str(home))
        builder = SparkSession.builder.master(master).config("spark.log.level", "ERROR")
        for key, value in (DEFAULTS | LOCAL_DEFAULTS | SMALL | {"spark.log.level": "ERROR"}).items():
            builder = builder.config(key, value)
        for key, value in conf.items():
            builder = builder.config(key.replace("_", "."), value)
        session = builder.getOrCreate()
        register(session)
        try:
            yield session
        finally:
            session.stop()
            signal.signal(signal.SIGINT, handler)
            assert os.environ["PYSPARK_PYTHON"] == sys.executable


class Query:
    """A stream of a store into Parquet files, with a checkpoint that outlives each run of it."""

    def __init__(self, spark: Any, root: Path, folder: Path, **options: str | int) -> None:
        self._spark, self._folder = spark, folder
        self._given = {"path": f"a={root}", "columns": "phy_offset,crc", "quietMs": "300"} | {
            name: str(value) for name, value in options.items()
        }

    def start(self, **trigger: Any) -> Any:
        frame = self._spark.readStream.format("rocketmq-store").options(**self._given).load()
        writer = frame.writeStream.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(**trigger)
        return writer.start(str(self._folder / "rows"), format="parquet")

    def finish(self) -> Any:
        """Read what is there, and end."""
        query = self.start(availableNow=True)
        query.awaitTermination()
        return query

    def rows(self) -> list[tuple[Any, ...]]:
        frame = self._spark.read.parquet(str(self._folder / "rows"))
        return sorted(tuple(row) for row in frame.collect())
