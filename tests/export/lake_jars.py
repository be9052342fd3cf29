"""The newest Spark for which Delta and Iceberg both have a package, with these packages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.broker.jars import dependency, fetched

_SPARK: Final = "4.1.3"
_DELTA: Final = "4.4.0"
_ICEBERG: Final = "1.12.0"


def lake_jars() -> Path:
    """Folder with all jars; fetched once. Raises NoBrokerError."""
    return fetched(
        f"spark-{_SPARK}-delta-{_DELTA}-iceberg-{_ICEBERG}",
        dependency("org.apache.spark", "spark-sql_2.13", _SPARK),
        dependency("io.delta", "delta-spark_4.1_2.13", _DELTA),
        dependency("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", _ICEBERG),
    )
