"""What tests need of the world, got while an environment for them is made: `python3 -m tests.ahead` needs nothing but Python."""

from __future__ import annotations

from tests import azurite
from tests.broker import jars, oracle

if __name__ == "__main__":
    for version in (*oracle.VERSIONS, "4.3.0", "5.1.4"):
        jars.classpath(version)
    azurite.command(port=0)
