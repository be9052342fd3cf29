"""Save the page of `recover --report FILE`, and show affected groups and open transactions."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqctl.context import Context
from rmqctl.output.document import Block, Table, Text
from store_core.errors import UsageError

if TYPE_CHECKING:
    from store_core.recovery.loss_report.model import GroupLoss, Loss, LossReport
    from store_core.recovery.prediction.predict import Prediction
    from store_core.recovery.recover import Recovery
    from store_core.storage.settings import Settings
    from store_core.storage.store import Store

ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Save a loss report: a page that needs nothing but itself, or everything as data where FILE ends in .json.",
    ),
]
GROUP_COLUMNS: Final = ("group", "queues", "had_consumed", "will_miss", "behind_new_end")
_MOST_GROUPS: Final = 10
_PAGE: Final = (".html", ".htm")
_DATA: Final = ".json"


def losses_in_words(
    ctx: Context, store: Store, found: Recovery | Prediction, path: Path | None = None, options: Sequence[str] = ()
) -> LossReport | None:
    """Return the loss report for ``loss_blocks``, saved if ``path`` is given; None if no output needs it.

    It describes the store as it is: call this before a plan is carried out.

    Args:
        path: a place that ``refuse_place`` has accepted.
        options: the command line options of the plan.

    Raises:
        FailedError: the report cannot be written.
    """
    shown = ctx.output.format in ("table", "plain", "github") and _loses(found)
    if path is None and not shown:
        return None
    from store_core.recovery.loss_report.build import loss_report
    from store_core.storage.modes import no_wider_than

    with ctx.progress("report", store.log.size_bytes) as bar:
        report = loss_report(store, found, made_timestamp_ms=time.time_ns() // 1_000_000, on_progress=bar)
    if path is not None:
        with no_wider_than([store.root]):
            _save(path, _encoded(ctx, report, path, store.settings, options))
        ctx.note(f"loss report saved as {path}")
    return report


def refuse_place(path: Path | None, settings: Settings) -> None:
    """Raise UsageError for a report inside the store, over an existing file, or of an unknown form."""
    if path is None:
        return
    if path.suffix.lower() not in (*_PAGE, _DATA):
        raise UsageError("a report is a page or data", path=str(path), to_do="name a file that ends in .html or .json")
    from store_core.storage.remote_path import real_path

    real = real_path(path)
    for root in (settings.root, *settings.outside_paths):
        if real.is_relative_to(real_path(root)):
            raise UsageError("a report is not saved inside the store", path=str(path), to_do="name a file elsewhere")
    if not real.parent.is_dir():
        raise UsageError("no place for a report", path=str(path), to_do="name a file in a folder that is there")
    if os.path.lexists(path):
        raise UsageError("there is a file already", path=str(path), to_do="name another file, or remove this one first")


def _loses(found: Recovery | Prediction) -> bool:
    from store_core.recovery.prediction.predict import Prediction

    if isinstance(found, Prediction):
        return bool(found.outcome.lost)
    return bool(found.prediction.outcome.lost or found.lost)


def _encoded(ctx: Context, report: LossReport, path: Path, settings: Settings, options: Sequence[str]) -> bytes:
    if path.suffix.lower() == _DATA:
        return json.dumps(report.as_json(), ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"
    from rmqctl.report.page import Reader, page
    from rmqctl.verdict import store_arguments

    zone = ctx.options.zone
    reader = Reader(zone, str(zone.tzname(None) or zone), store_arguments(ctx, settings), tuple(options))
    return page(report, reader).encode("utf-8", "replace")


def _save(path: Path, data: bytes) -> None:
    from store_core.storage.part_file import PartFile

    file = PartFile(path)  # never overwrites a file, not even one made a moment ago
    try:
        file.write(data)
        file.close()
    except BaseException:
        file.discard()
        raise


def loss_blocks(report: LossReport | None) -> Iterator[Block]:
    """Yield affected groups and open transactions, briefly: of the plan's losses if there is a plan, else of the broker's."""
    if report is None:
        return
    broker, kept = report.broker.thrown_away, report.kept
    if kept is None:
        if broker is not None:
            yield from _groups(broker, "Consumer groups that would lose messages")
            yield from _halves(broker, "would be left")
        return
    if broker is not None and kept.policy != "broker":
        yield from _missing(broker)
        yield from _halves(broker, "would be left if a broker started now")
    yield from _groups(kept.loss, "Consumer groups that lose messages")
    yield from _halves(kept.loss, "are left")


def loss_rows(losses: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each kind of loss with its count, in the words of every format. Of kinds with no loss only the sums appear."""
    thrown_away = losses["thrown_away_messages"]
    yield "unreadable already", losses["unreadable_messages"]
    yield "thrown away by a broker's start", "it does not start" if thrown_away is None else thrown_away
    if thrown_away is not None:
        yield "kept by recover", losses["kept_messages"]
    if losses["given_up_messages"]:
        yield "given up, though readable", losses["given_up_messages"]
    if losses["expired_or_missing_messages"]:
        word = "missing" if losses["begin_is_missing"] else "expired"
        yield f"{word} before the log's start", losses["expired_or_missing_messages"]
    yield "lost with this plan", losses["lost_messages"]


def _missing(loss: Loss) -> Iterator[Block]:
    """Yield a line with the groups that would miss messages that can be read today."""
    missed: Counter[str] = Counter()
    for group in loss.groups:
        missed[group.group] += group.missed_messages
    shown = [f"{name} {number:,}" for name, number in missed.most_common(_MOST_GROUPS) if number]
    if shown:
        more = f", and {len(+missed) - len(shown)} more" if len(+missed) > len(shown) else ""
        yield Text(f"If a broker started now, consumer groups would miss messages: {', '.join(shown)}{more}.")


def _groups(loss: Loss, title: str) -> Iterator[Block]:
    by_group: dict[str, list[GroupLoss]] = {}
    for group in loss.groups:
        by_group.setdefault(group.group, []).append(group)
    if not by_group:
        return

    def weight(name: str) -> tuple[int, int, str]:
        found = by_group[name]
        return -sum(g.missed_messages for g in found), -sum(g.consumed_messages for g in found), name

    rows = [
        {
            "group": name,
            "queues": len(by_group[name]),
            "had_consumed": sum(g.consumed_messages for g in by_group[name]),
            "will_miss": sum(g.missed_messages for g in by_group[name]),
            "behind_new_end": sum(g.beyond_end for g in by_group[name]),
        }
        for name in sorted(by_group, key=weight)
    ]
    more = f", the first {_MOST_GROUPS} of {len(rows)}" if len(rows) > _MOST_GROUPS else ""
    yield Table(rows[:_MOST_GROUPS], GROUP_COLUMNS, f"{title}{more}")


def _halves(loss: Loss, words: str) -> Iterator[Block]:
    halves = loss.half_messages
    if halves.open_messages:
        because = f", {halves.decision_lost:,} of them because their decision is lost" if halves.decision_lost else ""
        yield Text(f"Half messages that {words} open: {halves.open_messages:,}{because}.")
