"""Report an error that ends a command: one line on stderr, an error document if the format has one, an exit code."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rmqctl import exit_codes
from rmqctl.app import PROGRAM
from rmqctl.output.streams import abandon, say
from rmqctl.signals import Terminated
from store_core.errors import StoreError, without_secrets
from store_core.extras import BROUGHT_BY, not_installed

if TYPE_CHECKING:
    from typer import TyperException

    from rmqctl.session import Session

_OPTION: Final = re.compile(r"^(no such option): ?(\S+)$", re.IGNORECASE)
DEBUG_VARIABLE: Final = "RMQCTL_DEBUG"
_LONGEST_LINE: Final = 2000
_LIKE: Final = 0.6  # least ratio of difflib
_SLIP: Final = 0.85
_NOT_LOADED: Final = ("failed to map segment", "annot allocate memory")
_NO_HOME: Final = "Could not determine home directory"

_OS_ADVICE: Final = {
    errno.EACCES: "run it as the user who owns the store",
    errno.EPERM: "run it as the user who owns the store",
    errno.ENOSPC: "free some space, then run it again",
    errno.EDQUOT: "free some space, then run it again",
    errno.EROFS: "mount it writable, or write elsewhere",
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.ELOOP: "a symbolic link leads back to itself; check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "too many open files on this machine; end something",
    errno.ENOMEM: "free some memory, then run it again",
    errno.EIO: "the disk fails: copy the store with ddrescue to a good one first, and work on the copy",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as it is reported: ``line`` without the leading ``error:``, the error document, the exit code."""

    code: str
    line: str
    exit_code: int
    message: str = ""
    path: str | None = None
    phy_offset: int | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The ``error`` object of the command line's contract."""
        return {
            "code": self.code,
            "message": self.message or self.line,
            "path": self.path,
            "phy_offset": self.phy_offset,
        }


def describe(error: BaseException) -> Mapping[str, Any] | None:
    """Return the error document of an exception; None if the reader of stdout has gone."""
    return None if _is_reader_gone(error) else failure_of(error).document


def report(error: BaseException, session: Session | None) -> int:
    """Report an error and return the exit code. Never raises."""
    if isinstance(error, SystemExit):
        return _system_exit_code(error)
    if _is_reader_gone(error):
        abandon(sys.stdout)
        return exit_codes.OK
    failure = failure_of(error)
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    try:
        if session is not None and (output := session.output_for_errors()) is not None:
            output.error(failure.document)
        sys.stdout.flush()
    except (OSError, ValueError, StoreError, KeyboardInterrupt, Terminated):
        abandon(sys.stdout)
    _say(f"error: {failure.line}")
    return failure.exit_code


def failure_of(error: BaseException) -> Failure:
    """Return an exception in the user's terms, without the secrets that addresses may hold."""
    found = _failure_of(error)
    path = None if found.path is None else without_secrets(found.path)
    return replace(found, line=without_secrets(found.line), message=without_secrets(found.message), path=path)


def _failure_of(error: BaseException) -> Failure:
    if isinstance(error, StoreError):
        exit_code = exit_codes.BY_ERROR_CODE.get(error.code, exit_codes.FAILED)
        return Failure(error.code, str(error), exit_code, _message(error), error.path, error.phy_offset)
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", "interrupted", exit_codes.INTERRUPTED)
    if isinstance(error, Terminated):
        return Failure("interrupted", "terminated", 128 + error.signal_number)
    if isinstance(error, RuntimeError) and _NO_HOME in str(error):
        return Failure("usage", "the home folder that ~ stands for is not known: write the path out", exit_codes.USAGE)
    if isinstance(error, ImportError) and any(text in str(error) for text in _NOT_LOADED):
        to_do = "free some memory, or see whether programs may be run from where it lies"
        return Failure("failed", f"a library cannot be loaded: {error}: {to_do}", exit_codes.FAILED)
    if isinstance(error, ModuleNotFoundError) and (module := (error.name or "").partition(".")[0]) in BROUGHT_BY:
        return failure_of(not_installed(module, "this"))
    if isinstance(error, MemoryError):
        return Failure("failed", "out of memory: free some memory, or give --jobs 1", exit_codes.FAILED)
    if isinstance(error, RecursionError):
        return Failure("failed", "something is nested too deeply to be read", exit_codes.FAILED)
    if isinstance(error, OSError) and error.errno is not None:
        return _os_failure(error)
    return _usage_failure(error) or _internal_failure(error)


def _message(error: StoreError) -> str:
    return error.what + (f": {error.to_do}" if error.to_do else "")


def _os_failure(error: OSError) -> Failure:
    from store_core.storage.failure import is_full_of_files

    what = error.strerror or os.strerror(error.errno or 0)
    what = what[:1].lower() + what[1:]
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else None
    advice = _OS_ADVICE.get(error.errno or 0, "")
    if error.errno in (errno.EACCES, errno.EPERM) and path is not None:
        advice = _owner_advice(path) or advice
    if is_full_of_files(error):
        advice = "it has room but can hold no more files: remove some, then run it again"
    line = what + (f" ({path})" if path else "") + (f": {advice}" if advice else "")
    return Failure("failed", line, exit_codes.FAILED, what, path)


def _owner_advice(path: str) -> str:
    """Return advice that names the owner of a refused path or its nearest readable parent; empty if there is none."""
    import pwd

    while True:
        try:
            uid = os.lstat(path).st_uid
        except OSError:
            if (above := os.path.dirname(path)) in (os.sep, ""):
                return ""
            path = above
            continue
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            owner = f"user {uid}"
        return f"{path} belongs to {owner}: run it as that user"


def _usage_failure(error: BaseException) -> Failure | None:
    """Return the parser's own error as one line with advice; None for any other error."""
    from typer import TyperException

    if not isinstance(error, TyperException):
        return None
    ctx = getattr(error, "ctx", None)
    to_do = f"see `{ctx.command_path if ctx is not None else PROGRAM} --help`"
    if (complaint := _bad_value(error)) is not None:
        return Failure("usage", complaint, exit_codes.USAGE, complaint)
    what, _, meant = " ".join(error.format_message().split()).rstrip(".").partition(". Did you mean ")
    if meant and what.startswith("No such command"):
        meant = _commands_like(what)
    if possible := getattr(error, "possibilities", None):
        what, meant = error.message, f"{', '.join(sorted(possible))}?"
    what = _OPTION.sub(r"\1 '\2'", what)
    if meant:
        to_do = f"did you mean {meant} Or {to_do}"
    line = f"{what[:1].lower()}{what[1:]}: {to_do}"
    return Failure("usage", line, exit_codes.USAGE, line)


def _commands_like(complaint: str) -> str:
    """Return the commands that a mistyped word may mean. A command that writes is offered only for a close match."""
    from difflib import SequenceMatcher

    from rmqctl.commands import built_commands

    wrong = complaint.partition("'")[2].partition("'")[0]
    likeness = {name: SequenceMatcher(None, name, wrong).ratio() for name in built_commands()}
    meant = []
    for name, entry in built_commands().items():
        writes = entry.group in ("Mend", "Write", "Move")
        if likeness[name] >= (_SLIP if writes else _LIKE) and (not writes or name[0] == wrong[:1]):
            meant.append(f"'{name}'")
    return f"{', '.join(meant)}?" if meant else ""


def _bad_value(error: TyperException) -> str | None:
    """Return the error of an option's value with its option and the values that fit; None for any other error."""
    from rmqctl.values import BadValue

    if not isinstance(error, BadValue) or error.param is None:
        return None
    name = error.param.opts[0] if error.param.param_type_name == "option" else error.param.metavar
    if repr(error.value) not in error.message:  # another option's value makes this one unreadable
        return f"{error.message.rstrip('.')} ({name}): {error.expected}"
    return f"invalid value {error.value!r} for {name}: {error.expected}"


def _internal_failure(error: BaseException) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "nowhere"
    what = f"internal error: {type(error).__name__}: {error}".rstrip(": ")
    line = f"{what} ({where}): please report it; run with {DEBUG_VARIABLE}=1 to see the traceback"
    return Failure("internal", line, exit_codes.FAILED, what)


def _is_reader_gone(error: BaseException) -> bool:
    """Return True if stdout's reader has gone (``| head``). Any other broken pipe or socket is a failure."""
    if not isinstance(error, BrokenPipeError):
        return False
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def _say(line: str) -> None:
    say(" ".join(line.splitlines())[:_LONGEST_LINE])


def _system_exit_code(error: SystemExit) -> int:
    if isinstance(error.code, int) or error.code is None:
        return error.code or exit_codes.OK
    _say(f"error: {error.code}")
    return exit_codes.FAILED
