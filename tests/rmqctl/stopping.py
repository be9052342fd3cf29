"""A real rmqctl that stands still at a chosen moment of its work, so that nothing depends on who is quicker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.rmqctl.calls import ROOT, environment

# rmqctl that stops itself (as Ctrl-Z does) whenever it comes to the function named first: MODULE:FUNCTION.
_STOPPING: Final = """
import os, signal, sys
from importlib import import_module
from operator import attrgetter
module, _, name = sys.argv[1].partition(":")
owner, _, last = name.rpartition(".")
owner = attrgetter(owner)(import_module(module)) if owner else import_module(module)
real = getattr(owner, last)
def stopping(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGSTOP)
    return real(*args, **kwargs)
setattr(owner, last, stopping)
from rmqctl.app import main
del sys.argv[1]
sys.exit(main())
"""


@contextmanager
def stopped(moment: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """rmqctl with these words, stopped before it calls ``MODULE:FUNCTION``; SIGCONT lets it go on. In a session of its own."""
    args = [sys.executable, "-c", _STOPPING, moment, *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        args, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert found is not None
            assert found.si_code == os.CLD_STOPPED, "it ended before it came there"
            yield process
        finally:
            process.kill()
