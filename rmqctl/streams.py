"""Standard streams: something to write to in any case, and nobody who reads is no fault."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, Final

_BUFFER_BYTES: Final = 1 << 16
_UNENCODABLE: Final = "backslashreplace"  # in JSON a lone surrogate's escape is right as it stands


def prepare_streams() -> None:
    """UTF-8 on pipes whatever the locale says, never an encoding error, and no stream that is closed."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: what is written is lost, and no file opened later gets its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # lives as long as the process
        elif stream is getattr(sys, f"__{name}__"):
            if number == 1 and not stream.isatty():  # buffered also where Python was told not to (PYTHONUNBUFFERED)
                sys.stdout = open(  # noqa: SIM115  # lives as long as the process
                    number, "w", _BUFFER_BYTES, encoding="utf-8", errors=_UNENCODABLE, newline="\n", closefd=False
                )
            else:
                stream.reconfigure(errors=_UNENCODABLE)


def abandon(stream: IO[str]) -> None:
    """Let what is still buffered go nowhere, so that the interpreter's last flush is quiet and does not fail."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def say(text: str) -> None:
    """One line to stderr, with nothing in it that drives a terminal. Where nobody listens, the work goes on."""
    from rmqctl.cells import escape_controls

    try:
        print(escape_controls(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        abandon(sys.stderr)
