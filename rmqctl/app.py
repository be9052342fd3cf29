"""Run one command, and turn any error into an exit code and at most one line on stderr."""

from __future__ import annotations

import gc
import os
import sys

from rmqctl import signals  # imported first, because a signal may come at any time

TYPE_CHECKING = False  # typing itself is loaded later
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Final

    from rmqctl.session import Session

PROGRAM: Final = "rmqctl"
COMPLETION_VARIABLE: Final = "_RMQCTL_COMPLETE"
# Python's own shutdown would wait for answers of object stores that no caller needs, and would free DuckDB's objects singly.
_LEFT_AT_ONCE: Final = {"duckdb", "store_core.storage.object_store"}
_OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000  # Python's 700 would search modules and parsers again and again
_UTF_8_VARIABLE: Final = "PYTHONUTF8"
_FAILED: Final = 1  # the same as exit_codes.FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Raises nothing but SystemExit, from shell completion.

    Without ``argv`` this is the program itself, and the process ends after it.
    """
    if argv is not None:
        return _main(argv)
    signals.end_at_once()
    _speak_utf_8()
    prepare_process()
    code = _main(None)
    if not _LEFT_AT_ONCE.isdisjoint(sys.modules):
        _leave_at_once(code)
    gc.freeze()  # spares the shutdown a search through every object
    return code


def _speak_utf_8() -> None:
    """Restart in Python's UTF-8 mode if the locale is plain ASCII, which would garble arguments in UTF-8."""
    if sys.getfilesystemencoding() == "ascii" and os.environ.get(_UTF_8_VARIABLE) != "1" and sys.executable:
        os.environ[_UTF_8_VARIABLE] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def prepare_process() -> None:
    """Set the garbage collector, the environment and the import hooks before the libraries are imported."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # rmqctl never uses the threads that numpy would start
    sys.meta_path.insert(0, _WithoutPandas)


class _WithoutPandas:
    """Refuse to import pandas, which pyarrow loads, slowly, only to test whether a list is a pandas series."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> None:
        """Raise ModuleNotFoundError for pandas; leave every other module to Python's own finders."""
        if name == "pandas":
            raise ModuleNotFoundError("nothing here asks for pandas", name=name)


def _leave_at_once(code: int) -> None:
    """Flush the streams and end the process without Python's own shutdown."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _main(argv: Sequence[str] | None) -> int:
    try:
        with signals.signals_raise() as requests:
            session: list[Session] = []
            try:
                return _run_arguments(list(sys.argv[1:] if argv is None else argv), session)
            except BaseException as error:
                requests.reached()
                return _report_failure(requests.cause or error, session[0] if session else None)
    except KeyboardInterrupt:
        from rmqctl import exit_codes

        return exit_codes.INTERRUPTED  # the signal came between two lines of the above
    except signals.Terminated as late:
        return 128 + late.signal_number


def _report_failure(error: BaseException, session: Session | None) -> int:
    try:
        from rmqctl.failures import report

        return report(error, session)
    except MemoryError:  # not enough memory even to report the error
        os.write(
            2,
            b"error: there is not enough memory: free some, or raise the limit (ulimit -v), then run the command again\n",
        )
        return _FAILED


def _run_arguments(args: list[str], sessions: list[Session]) -> int:
    """Run the command of ``args``; append the session to ``sessions`` as soon as it exists."""
    from rmqctl.output.streams import prepare_streams

    prepare_streams()
    if args == ["--version"]:  # answered without loading anything, for scripts that ask often
        return _flushed(_version())
    from rmqctl.session import Session

    sessions.append(Session.from_arguments(args))
    return _flushed(_run(sessions[0]))


def _version() -> int:
    from rmqctl import __version__, exit_codes

    sys.stdout.write(f"{PROGRAM} {__version__}\n")
    return exit_codes.OK


def _run(session: Session) -> int:
    from rmqctl.shell import build_group

    group = build_group(PROGRAM, rich_help=session.rich_help)
    if COMPLETION_VARIABLE in os.environ:
        from rmqctl.completion import complete

        return complete(group, PROGRAM, COMPLETION_VARIABLE)
    return group.run(session)


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from rmqctl.output.streams import not_written

        raise not_written(error) from error
    return code
