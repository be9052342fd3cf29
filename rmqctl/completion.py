"""Shell completion, by typer's own mechanism: the shell calls the program with a variable set."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from rmqctl.shell import LazyGroup

Shell = Literal["bash", "zsh", "fish"]
SHELLS: Final[tuple[Shell, ...]] = ("bash", "zsh", "fish")


def script(shell: Shell, program: str, variable: str) -> str:
    """The script that makes a shell complete the program's words."""
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name=program, complete_var=variable, shell=shell)


def complete(group: LazyGroup, program: str, variable: str) -> int:
    """Answer a shell that asks for the words that may come next. Raises SystemExit where typer does."""
    from typer._completion_classes import completion_init
    from typer.completion import shell_complete

    completion_init()
    code = shell_complete(group, {}, program, variable, os.environ[variable])
    sys.stdout.flush()
    return code
