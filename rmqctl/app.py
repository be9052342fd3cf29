"""The entry point: run one command, and turn whatever happens into an exit code and at most one line on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rmqctl import __version__, exit_codes

if TYPE_CHECKING:
    from rmqctl.session import Session

PROGRAM: Final = "rmqctl"
COMPLETION_VARIABLE: Final = "_RMQCTL_COMPLETE"
_BUFFER_BYTES: Final = 1 << 16
_UNENCODABLE: Final = "backslashreplace"  # in JSON a lone surrogate's escape is right as it stands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Never raises, except SystemExit out of shell completion."""
    args = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    if args == ["--version"]:  # answered without loading anything, for scripts that ask often
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        return _flushed(exit_codes.OK)
    from rmqctl.session import Session
    from rmqctl.signals import signals_raise

    session = Session.from_arguments(args)
    with signals_raise():
        try:
            return _flushed(_run(session))
        except BaseException as error:
            from rmqctl.failures import report

            return report(error, session)


def _run(session: Session) -> int:
    from rmqctl.shell import build_group

    group = build_group(PROGRAM, rich_help=session.rich_help)
    if COMPLETION_VARIABLE in os.environ:
        from rmqctl.completion import complete

        return complete(group, PROGRAM, COMPLETION_VARIABLE)
    return group.run(session)


def _prepare_streams() -> None:
    """Something to write to in any case, UTF-8 on pipes whatever the locale says, and never an encoding error."""
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


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from store_core.errors import FailedError

        raise FailedError(f"cannot write the result: {error.strerror}", to_do="check where stdout goes") from error
    return code
