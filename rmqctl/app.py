"""The entry point: run one command, and turn whatever happens into an exit code and at most one line on stderr."""

from __future__ import annotations

import os
import sys

from rmqctl import signals  # first, for a signal may come at any time

TYPE_CHECKING = False  # typing itself is loaded later
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Final

    from rmqctl.session import Session

PROGRAM: Final = "rmqctl"
COMPLETION_VARIABLE: Final = "_RMQCTL_COMPLETE"
_CLIENTS: Final = "store_core.storage.object_store"  # where there are clients of object stores, once it is loaded
_QUESTIONS: Final = "store_core.storage.remote_call"  # to them
_UTF_8_VARIABLE: Final = "PYTHONUTF8"
_FAILED: Final = 1  # as exit_codes has it
_SIGNALLED: Final = 128  # what a signal ended has a greater exit code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Never raises, except SystemExit out of shell completion.

    Without ``argv`` this is the program itself, and the process ends behind it.
    """
    if argv is not None:
        return _main(argv)
    signals.end_at_once()
    _speak_utf_8()
    prepare_process()
    try:
        code = _main(None)
    finally:
        if "duckdb" not in sys.modules:  # it complains on stderr of what is never collected
            leave_process()
    asking = sys.modules.get(_QUESTIONS)
    is_asked = (code > _SIGNALLED and _CLIENTS in sys.modules) or (asking is not None and asking.asks_still())
    if is_asked or "duckdb" in sys.modules:
        _leave_at_once(code)
    return code


def _speak_utf_8() -> None:
    """Begin again in Python's UTF-8 mode where a locale of plain ASCII would make other words of all that is typed in UTF-8."""
    if sys.getfilesystemencoding() == "ascii" and os.environ.get(_UTF_8_VARIABLE) != "1" and sys.executable:
        os.environ[_UTF_8_VARIABLE] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def prepare_process() -> None:
    """What the program sets before it imports what it works with."""
    from store_core.garbage import look_rarely

    look_rarely()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads for what we never ask
    sys.meta_path.insert(0, _WithoutPandas)


class _WithoutPandas:
    """pyarrow loads pandas, where it is installed, to see whether a list is one of its series: a tenth of a second (measured)."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> None:
        """As Python asks whom it finds here before it looks for a module itself."""
        if name == "pandas":
            raise ModuleNotFoundError("nothing here asks for pandas", name=name)


def leave_process() -> None:
    """What the program does last: what is still there need not be looked through once more."""
    from store_core.garbage import spare_what_is_there

    spare_what_is_there()


def _leave_at_once(code: int) -> None:
    """Python and the clients of object stores would wait for answers that no caller wants any more; without them it takes apart
    what DuckDB loaded, object by object, for a tenth of a second (measured)."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _main(argv: Sequence[str] | None) -> int:
    try:
        with signals.signals_raise() as asked:
            session: list[Session] = []
            try:
                return _told(list(sys.argv[1:] if argv is None else argv), session)
            except BaseException as error:
                asked.reached()
                return _reported(asked.cause or error, session[0] if session else None)
    except KeyboardInterrupt:
        from rmqctl import exit_codes

        return exit_codes.INTERRUPTED  # it came between two lines of the above
    except signals.Terminated as late:
        return 128 + late.signal_number


def _reported(error: BaseException, session: Session | None) -> int:
    try:
        from rmqctl.failures import report

        return report(error, session)
    except MemoryError:  # not even for that
        os.write(
            2,
            b"error: there is not enough memory: free some, or raise the limit (ulimit -v), then run the command again\n",
        )
        return _FAILED


def _told(args: list[str], started: list[Session]) -> int:
    """Run the words; ``started`` gets the session as soon as there is one."""
    from rmqctl.output.streams import prepare_streams

    prepare_streams()
    if args == ["--version"]:  # answered without loading anything, for scripts that ask often
        return _flushed(_version())
    from rmqctl.session import Session

    started.append(Session.from_arguments(args))
    return _flushed(_run(started[0]))


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
