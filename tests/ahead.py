"""What tests need of the world, got while an environment for them is made: `python3 -m tests.ahead` needs nothing but Python."""

from __future__ import annotations

from tests import azurite
from tests.broker import jars, oracle
from tests.export.lake_jars import lake_jars

if __name__ == "__main__":
    for version in (*oracle.VERSIONS, "4.3.0", "5.1.4"):
        jars.classpath(version)
    lake_jars()
    azurite.command(port=0)
