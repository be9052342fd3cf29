"""Show a verdict: the last lines of `recover`, and all of `doctor`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rmqctl.context import Context
from rmqctl.output.document import Block, Facts, Text

if TYPE_CHECKING:
    from store_core.recovery.verdict import Verdict
    from store_core.storage.settings import Settings

_WITHOUT_STORE = ("explain",)


def store_arguments(ctx: Context, settings: Settings) -> tuple[str, ...]:
    """Return the options that name this store and its settings on another command line."""
    options = ctx.options
    config = ("-c", os.path.abspath(options.config)) if options.config else ()
    version = ("--broker-version", options.broker_version) if options.broker_version else ()
    logs = tuple(part for log in options.commitlog for part in ("--commitlog", os.path.abspath(log)))
    return ("-s", str(settings.root), *config, *logs, *version)


def verdict_document(ctx: Context, settings: Settings, verdict: Verdict) -> dict[str, Any]:
    """Return the member ``verdict``, with the next command as typed."""
    words = verdict.next
    if words:
        words = ("rmqctl", *words, *(() if words[0] in _WITHOUT_STORE else store_arguments(ctx, settings)))
    return verdict.as_json(words)


def next_command(verdict: dict[str, Any]) -> str:
    """Return the command to run next, as typed, or a sentence if there is none."""
    return shlex.join(verdict["next"]) if verdict["next"] else "nothing to run: a broker can be started"


def verdict_blocks(verdict: dict[str, Any], title: str = "") -> Iterator[Block]:
    """Yield a block of three lines: state, loss, next."""
    yield Facts({"state": verdict["state"], "loss": verdict["loss"], "next": next_command(verdict)}, title)


def level_line(verdict: dict[str, Any]) -> Text:
    """Return the level alone, in its colour."""
    return Text(verdict["level"].upper(), f"bold {verdict['level']}")
