"""`rmqctl doctor`: one screen that says how a store stands, and what to run next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from rmqctl import exit_codes
from rmqctl.context import Context
from rmqctl.options import WALKERS, JobsOption
from rmqctl.output.document import Block, Table, Text
from rmqctl.verdict import level_line, verdict_blocks, verdict_document

if TYPE_CHECKING:
    from store_core.findings import Finding

_MOST_WHY: Final = 6
_MOST_LETTERS: Final = 160  # of a reason


def doctor(ctx: Context, jobs: JobsOption = WALKERS) -> int:
    """Say on one screen how a store stands: red, yellow or green, why, and the one command to run next.

    Red: a broker must not start on it as it is. Yellow: one loses nothing more, and something is to be mended or known. Green:
    nothing is to be done. It is the verdict that `recover` ends with. Nothing is changed.

    Example: rmqctl doctor -s /data/rocketmq/store
    """
    from store_core.broker.versions import Version
    from store_core.recovery.recover import WALKS, recover
    from store_core.recovery.verdict import verdict_before
    from store_core.storage.live import is_live

    settings = ctx.settings()
    version = Version.parse(settings.broker_version) if settings.broker_version else None
    with ExitStack() as keep:
        store = keep.enter_context(ctx.open_store())
        live = is_live(store.root).live
        with ctx.progress("doctor", WALKS * store.log.size_bytes) as bar:
            found = recover(store, "keep", version, jobs=jobs, keep=keep, on_progress=bar, on_total=bar.expect)
        verdict = verdict_before(found, live=live)
        document = {
            "store": str(settings.root),
            "last_exit": found.last_exit,
            "verdict": verdict_document(ctx, settings, verdict),
            "losses": found.losses.as_json(),
            "findings": list(found.findings),
        }
    ctx.output.emit(document, rows=[document["verdict"]], blocks=lambda: _blocks(document, verdict.why))
    return exit_codes.OK if verdict.level == "green" else exit_codes.FINDINGS


def _blocks(document: dict[str, Any], why: tuple[Finding, ...]) -> Iterator[Block]:
    yield level_line(document["verdict"])
    if why:
        codes = Counter(each.code for each in why)
        first = {each.code: each for each in reversed(why)}
        rows = [{"why": code, "times": times, "first": _short(first[code].message)} for code, times in codes.items()]
        yield Table(rows[:_MOST_WHY], ("why", "times", "first"))
        if len(rows) > _MOST_WHY:
            yield Text(f"and {len(rows) - _MOST_WHY} codes more; `rmqctl check` lists everything")
    yield from verdict_blocks(document["verdict"])


def _short(message: str) -> str:
    return message if len(message) <= _MOST_LETTERS else f"{message[: _MOST_LETTERS - 1]}…"
