"""Standard streams: something to write to in any case, and nobody who reads is no fault."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from store_core.errors import FailedError

_BUFFER_BYTES: Final = 1 << 16
UNENCODABLE: Final = "rmqctl"  # the name of what writes what UTF-8 has no bytes for
RAW_BYTES: Final = range(0xDC80, 0xDD00)  # what Python makes of bytes in names and words that are not UTF-8
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """A raw byte of a name as U+FFFD where that can be written, all else as its escape, which JSON has too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    raw = ord(character) in RAW_BYTES and error.encoding == "utf-8"
    return _REPLACEMENT if raw else character.encode("ascii", "backslashreplace"), error.start + 1


codecs.register_error(UNENCODABLE, _replaced)


class _Results(io.FileIO):
    """Standard output. What it does not take is no fault of a store's file, and says so, whenever the buffer is full."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise  # nobody reads any more, which is no fault
        except OSError as error:
            raise not_written(error) from error


def not_written(error: OSError) -> FailedError:
    """What to tell where the result cannot be written."""
    from store_core.errors import FailedError

    return FailedError(f"cannot write the result: {error.strerror}", to_do="check where stdout goes")


def prepare_streams() -> None:
    """UTF-8 on pipes whatever the locale says, never an encoding error, and no stream that is closed."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: what is written is lost, and no file opened later gets its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # lives as long as the process
        elif stream is getattr(sys, f"__{name}__"):
            if number == 1 and not stream.isatty():  # buffered also where Python was told not to (PYTHONUNBUFFERED)
                buffered = io.BufferedWriter(_Results(number, "w", closefd=False), _BUFFER_BYTES)
                sys.stdout = io.TextIOWrapper(buffered, encoding="utf-8", errors=UNENCODABLE, newline="\n")
            else:
                stream.reconfigure(errors=UNENCODABLE)


def standard_input() -> IO[bytes]:
    """What is piped in, as bytes. Raises FailedError where the caller has closed it: nothing is not an empty text."""
    if sys.stdin is None:
        from store_core.errors import FailedError

        raise FailedError("standard input is closed", to_do="pipe something in, or name a file")
    return sys.stdin.buffer


def abandon(stream: IO[str]) -> None:
    """Let what is still buffered go nowhere, so that the interpreter's last flush is quiet and does not fail."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def say(text: str) -> None:
    """One line to stderr, with nothing in it that drives a terminal. Where nobody listens, the work goes on."""
    from rmqctl.output.cells import escape_controls
    from store_core.errors import without_secrets

    try:
        print(escape_controls(without_secrets(text)), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        abandon(sys.stderr)
