"""Java as tests start it for Spark: soon up, as its programs are soon done.

Loading Spark's classes is most of what such a program does. Java keeps them in a file, from run to run beside the brokers' jars, and takes them
from there where it finds the same class path.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

from tests.broker import jars

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_SPARK: Final = str(Path(pyspark.__file__).parent)
_ARCHIVE: Final = jars.cache() / f"spark-{hashlib.sha256(_SPARK.encode()).hexdigest()[:16]}" / "classes.jsa"
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # where the file does not fit, Java does without
WITH_CLASSES: Final = f"{SHORT_LIVED} {_SILENT} -XX:SharedArchiveFile={_ARCHIVE}"
_PROGRAM: Final = """
import sys
from pyspark import SparkConf, SparkContext
settings = {"spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.extraJavaOptions": sys.argv[1]}
with SparkContext(conf=SparkConf().setMaster("local[1]").setAll(list(settings.items()))) as context:
    context.parallelize(range(4), 2).map(lambda number: number).collect()
"""


@cache
def keep_classes() -> None:
    """Make that file, once on a machine. Where it does not come to be, all goes on without."""
    with jars.locked(_ARCHIVE.parent):
        if not _ARCHIVE.exists():
            making = _ARCHIVE.with_suffix(".making")
            options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={making}"
            subprocess.run([sys.executable, "-c", _PROGRAM, options], capture_output=True, timeout=120, check=False)
            if making.exists():
                making.rename(_ARCHIVE)
