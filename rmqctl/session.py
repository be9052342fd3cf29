"""Hold the arguments and the output of one call of the program, before and after parsing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from rmqctl.options import Format
    from rmqctl.output.formats import Output

_STRUCTURED: Final = ("json", "ndjson")


@dataclass
class Session:
    """Arguments and output of one call, shared by the parser, the command and the error report."""

    args: list[str]
    no_color: bool
    output: Output | None = field(default=None)  # set once a command's options are parsed

    @classmethod
    def from_arguments(cls, args: Sequence[str]) -> Session:
        no_color = "--no-color" in args
        if no_color and sys.stdout.isatty():
            os.environ["NO_COLOR"] = "1"  # help is drawn before any option is parsed, and Rich reads this variable
        return cls(list(args), no_color or bool(os.environ.get("NO_COLOR")))

    @property
    def rich_help(self) -> bool:
        """True if Rich draws the help: only on a terminal."""
        return sys.stdout.isatty()

    def output_for_errors(self) -> Output | None:
        """Return the output for an error document. Arguments that cannot be parsed count if they name json or ndjson."""
        if self.output is None and (name := self._named_format()) in _STRUCTURED:
            from rmqctl.output.formats import Output

            self.output = Output(sys.stdout, cast("Format", name))
        return self.output

    def _named_format(self) -> str | None:
        named = None
        for word, following in zip(self.args, [*self.args, ""][1:], strict=True):
            if word == "--":
                break
            if word in ("-o", "--output"):
                named = following
            elif word.startswith("--output="):
                named = word.partition("=")[2]
            elif word.startswith("-o") and not word.startswith("--"):
                named = word[2:]
        return named
