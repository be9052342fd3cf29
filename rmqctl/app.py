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
    """UTF-8 on pipes whatever the locale says; never an encoding error; something to write to in any case."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: what is written is lost, and no file opened later gets its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # lives as long as the process
        elif hasattr(stream, "reconfigure"):
            terminal = stream.isatty()
            stream.reconfigure(encoding=None if terminal else "utf-8", errors="backslashreplace")


def _flushed(code: int) -> int:
    sys.stdout.flush()
    return code
