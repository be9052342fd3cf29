"""`rmqctl help`: the help of a command, as `rmqctl COMMAND --help` shows it."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands import built_commands
from rmqctl.context import Context


def help(  # the command's own name
    ctx: Context,
    command: Annotated[
        str | None,
        typer.Argument(
            metavar="[COMMAND]", help="Command; the program without it.", autocompletion=lambda: [*built_commands()]
        ),
    ] = None,
) -> int:
    """Show the help of a command, or of the program.

    Example: rmqctl help recover
    """
    from rmqctl.app import PROGRAM
    from rmqctl.session import Session
    from rmqctl.shell import build_group

    session = Session.from_arguments([*([command] if command else []), "--help"])
    return build_group(PROGRAM, rich_help=session.rich_help).run(session)
