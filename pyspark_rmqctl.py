"""Makes ``spark.read.format("rocketmq-store")`` known to Spark.

Where rmqctl is installed, or its sources are sent with ``--py-files``, Spark finds this module by the first word of its name,
and nothing has to be imported. ``import pyspark_rmqctl`` works everywhere: it registers the source with the session at work and
with those that are made later.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from store_core.export.source.data_source import StoreSource as DefaultSource

__all__ = ["DefaultSource", "register"]


def register(session: SparkSession) -> None:
    """Make the source known to a session; nothing happens where it is."""
    try:
        session.dataSource.register(DefaultSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark has found it by itself
            raise


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
