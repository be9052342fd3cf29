"""Spark sessions of tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from store_core.export.runners.java import java_home
from store_core.export.runners.spark import DEFAULTS, LOCAL_DEFAULTS

SMALL = {"spark.driver.memory": "512m", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}


@contextmanager
def spark_session(master: str = "local[2]", **conf: str) -> Iterator[SparkSession]:
    """A session of this process, stopped on leaving. ``conf``: settings with ``_`` for dots."""
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
        try:
            yield session
        finally:
            session.stop()
            assert os.environ["PYSPARK_PYTHON"] == sys.executable
