"""Prepare the standard streams: they can always be written, and a reader that has gone is no error."""

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
UNENCODABLE: Final = "rmqctl"  # name of the error handler for characters that UTF-8 cannot encode
RAW_BYTES: Final = range(0xDC80, 0xDD00)  # surrogates for bytes of names and arguments that are not UTF-8
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """Replace a raw byte by U+FFFD in UTF-8, any other character by its escape, also valid in JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    raw = ord(character) in RAW_BYTES and error.encoding == "utf-8"
    return _REPLACEMENT if raw else character.encode("ascii", "backslashreplace"), error.start + 1


codecs.register_error(UNENCODABLE, _replaced)


class _Results(io.FileIO):
    """Standard output, whose write errors name the result, so that they do not look like errors of a store's file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise  # the reader has gone, which is no error
        except OSError as error:
            raise not_written(error) from error


def not_written(error: OSError) -> FailedError:
    """Return the error to raise if the result cannot be written."""
    from store_core.errors import FailedError

    return FailedError(f"cannot write the result: {error.strerror}", to_do="check where stdout goes")


def prepare_streams() -> None:
    """Set stdout and stderr to UTF-8 on pipes in any locale, with no encoding errors, and replace closed ones."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: output is lost, and no file opened later gets its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # lives as long as the process
        elif stream is getattr(sys, f"__{name}__"):
            if number == 1 and not stream.isatty():  # buffered even with PYTHONUNBUFFERED
                buffered = io.BufferedWriter(_Results(number, "w", closefd=False), _BUFFER_BYTES)
                sys.stdout = io.TextIOWrapper(buffered, encoding="utf-8", errors=UNENCODABLE, newline="\n")
            else:
                stream.reconfigure(errors=UNENCODABLE)


def standard_input() -> IO[bytes]:
    """Return standard input in bytes. Raises FailedError if the caller has closed it, which is not an empty text."""
    if sys.stdin is None:
        from store_core.errors import FailedError

        raise FailedError("standard input is closed", to_do="pipe something in, or name a file")
    return sys.stdin.buffer


def abandon(stream: IO[str]) -> None:
    """Discard buffered output, so that the interpreter's last flush does not fail."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def say(text: str) -> None:
    """Print one line to stderr, escaped so that it cannot drive a terminal. The work continues if stderr fails."""
    from rmqctl.output.cells import escape_controls
    from store_core.errors import without_secrets

    try:
        print(escape_controls(without_secrets(text)), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        abandon(sys.stderr)
