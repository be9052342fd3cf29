"""How a verdict is shown: the last lines of `recover`, and all of `doctor`."""

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
    """What names this store, with its settings, on another command line."""
    options = ctx.options
    config = ("-c", os.path.abspath(options.config)) if options.config else ()
    version = ("--broker-version", options.broker_version) if options.broker_version else ()
    logs = tuple(part for log in options.commitlog for part in ("--commitlog", os.path.abspath(log)))
    return ("-s", str(settings.root), *config, *logs, *version)


def verdict_document(ctx: Context, settings: Settings, verdict: Verdict) -> dict[str, Any]:
    """The member ``verdict``, with the next command as it is typed."""
    words = verdict.next
    if words:
        words = ("rmqctl", *words, *(() if words[0] in _WITHOUT_STORE else store_arguments(ctx, settings)))
    return verdict.as_json(words)


def next_command(verdict: dict[str, Any]) -> str:
    """The command to run next, as it is typed; what else there is to do where none is."""
    return shlex.join(verdict["next"]) if verdict["next"] else "nothing to run: a broker can be started"


def verdict_blocks(verdict: dict[str, Any], title: str = "") -> Iterator[Block]:
    """Three lines: state, loss, next."""
    yield Facts({"state": verdict["state"], "loss": verdict["loss"], "next": next_command(verdict)}, title)


def level_line(verdict: dict[str, Any]) -> Text:
    """The level alone, in its colour."""
    return Text(verdict["level"].upper(), f"bold {verdict['level']}")
