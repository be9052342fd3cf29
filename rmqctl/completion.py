"""Complete words for a shell by typer's own mechanism: the shell calls the program with a variable set."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rmqctl.shell import LazyGroup

Shell = Literal["bash", "zsh", "fish"]


def script(shell: Shell, program: str, variable: str) -> str:
    """Return the script that makes a shell complete the program's words."""
    from rmqctl.shell import build_group

    with redirect_stdout(io.StringIO()) as written:
        _answer_shell(build_group(program, rich_help=False), program, variable, f"source_{shell}")
    return written.getvalue().strip()


def complete(group: LazyGroup, program: str, variable: str) -> int:
    """Print the words that may come next, for the shell that asks. Raises SystemExit where typer does."""
    code = _answer_shell(group, program, variable, os.environ[variable])
    sys.stdout.flush()
    return code


def _answer_shell(group: LazyGroup, program: str, variable: str, instruction: str) -> int:
    from typer.completion import get_completion_inspect_parameters, shell_complete

    get_completion_inspect_parameters()  # makes typer register its shells
    return shell_complete(group, {}, program, variable, instruction)
