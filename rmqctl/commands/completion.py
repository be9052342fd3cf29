"""`rmqctl completion`: the script that makes a shell complete commands, options and topics."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rmqctl.app import COMPLETION_VARIABLE, PROGRAM
from rmqctl.completion import Shell, script
from rmqctl.context import Context


def completion(
    ctx: Context, shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]
) -> None:
    """Print the completion script of a shell; load it from the shell's start file.

    Example: rmqctl completion bash > ~/.local/share/bash-completion/completions/rmqctl
    """
    sys.stdout.write(script(shell, PROGRAM, COMPLETION_VARIABLE) + "\n")
