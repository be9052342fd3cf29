"""`rmqctl recover`: what a broker would do at its next start, what can be kept, and the plan for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl import exit_codes
from rmqctl.context import Context
from rmqctl.loss_report import ReportOption, loss_blocks, loss_rows, losses_in_words, refuse_place
from rmqctl.mending import (
    LOST_COLUMNS,
    ApplyOption,
    Carrying,
    SaveOption,
    at_work,
    conclude,
    plan_blocks,
    refuse_unconfirmed,
)
from rmqctl.options import WALKERS, JobsOption, YesOption
from rmqctl.output.document import Block, Facts, Findings, Table, Text
from rmqctl.verdict import verdict_blocks, verdict_document
from store_core.errors import FailedError, UsageError
from store_core.findings import Finding, finding
from store_core.storage.live import is_locked
from store_core.storage.remote_path import path_of

if TYPE_CHECKING:
    from store_core.recovery.keep_options import KeepOptions
    from store_core.recovery.prediction.outcome import Outcome
    from store_core.recovery.prediction.predict import Prediction
    from store_core.recovery.recover import Recovery
    from store_core.storage.store import Store

_MOST_LOST_SHOWN = 15
_MOST_KEYS_SHOWN = 3
_ALSO_TOLD = {
    "first_file_scanned": "scans from {}",
    "deleted_commitlog_files": "deletes {} log files",
    "deleted_index_files": "deletes {} index files",
    "delivered_early": "delivers {} early",
    "ghosts": "takes back {} ghosts",
}


def recover(
    ctx: Context,
    policy: Annotated[
        Literal["keep", "broker", "strict"],
        typer.Option(
            "--policy",
            help="keep: nothing readable is given up. broker: what the broker would do, without its ghosts. "
            "strict: as keep, but only if nothing at all is lost.",
        ),
    ] = "keep",
    gaps: Annotated[
        Literal["tombstone", "skip"],
        typer.Option(
            "--gaps",
            help="What stands for a lost message. tombstone: a record that consumers see, and that lasts. "
            "skip: an entry that consumers pass over; brokers 5.x may hide its neighbours once older log files expire.",
        ),
    ] = "tombstone",
    no_fill: Annotated[
        bool,
        typer.Option("--no-fill", help="Leave holes in the log as they are, and say what a broker will do there."),
    ] = False,
    sibling: Annotated[
        list[str] | None,
        typer.Option(
            "--sibling",
            metavar="STORE",
            help="Another copy of this store, a master's, a slave's or one in an object store (s3://BUCKET/FOLDER): good records are taken from it. "
            "It is only read. Repeatable.",
        ),
    ] = None,
    sibling_config: Annotated[
        list[Path] | None,
        typer.Option(
            "--sibling-config",
            metavar="FILE",
            help="The broker's properties of the sibling that is named first, second, …: where its log lies.",
        ),
    ] = None,
    sibling_from: Annotated[
        int | None,
        typer.Option(
            "--sibling-from",
            metavar="PHY_OFFSET",
            min=0,
            help="Where the log starts later here than at a sibling: take what is missing at its start, from the segment that holds this offset on. "
            "Without it that is taken for expired.",
        ),
    ] = None,
    predict: Annotated[bool, typer.Option("--predict", help="Only say what a broker would do.")] = False,
    jobs: JobsOption = WALKERS,
    apply: ApplyOption = False,
    save: SaveOption = None,
    report: ReportOption = None,
    yes: YesOption = False,
) -> int:
    """Predict what a broker would do to this store at its next start, and plan how to keep everything readable.

    Nothing is changed without --apply; every changed byte is kept, and `rmqctl undo` brings it back.

    Example: rmqctl recover -s /data/rocketmq/store --apply
    """
    settings = ctx.settings()
    refuse_place(report, settings)
    with at_work(ctx, settings, apply=apply and not predict) as lock, ExitStack() as keep, ExitStack() as shown:
        if apply:
            settings.writable_outside_paths()
        store = keep.enter_context(ctx.open_store())
        if predict:
            return _predict_now(ctx, store, report) if is_locked(store.root) else _predict(ctx, store, report)
        from store_core.broker.versions import Version
        from store_core.recovery.keep_options import KeepOptions
        from store_core.recovery.recover import WALKS
        from store_core.recovery.recover import recover as plan_recovery
        from store_core.recovery.verdict import Prospect, verdict_after, verdict_before
        from store_core.storage.live import is_live

        if sibling and not all(sibling):
            raise UsageError("the sibling's path is empty", to_do="name a copy's root with --sibling")
        siblings = tuple(path_of(text).expanduser().absolute() for text in sibling or ())
        configs = tuple(path.expanduser().absolute() for path in sibling_config or ())
        options = KeepOptions(gaps, not no_fill, siblings, configs, sibling_from)
        version = Version.parse(settings.broker_version) if settings.broker_version else None
        size = store.log.size_bytes
        bar = shown.enter_context(ctx.progress("recover", WALKS * size, ahead_bytes=size if apply else 0))
        recovery = plan_recovery(
            store, policy, version, options, jobs=jobs, keep=keep, on_progress=bar, on_total=bar.expect
        )
        words = _words(options)
        losses = losses_in_words(ctx, store, recovery, report, words)
        if apply:
            _refuse_to_apply(settings.root, recovery, policy, yes=yes)
        refuse_unconfirmed(ctx, recovery.given_up, apply=apply, yes=yes)
        chosen = ("--policy", policy, *words) if policy != "keep" else tuple(words)
        live = is_live(store.root).live and not apply
        prospect = Prospect.of(recovery)

        def complete(document: dict[str, Any]) -> None:
            applied = document["applied"]
            judged = (
                verdict_after(prospect, document["findings"])
                if applied
                else verdict_before(recovery, chosen, live=live)
            )
            document["verdict"] = verdict_document(ctx, settings, judged)

        return conclude(
            ctx,
            settings,
            recovery,
            Carrying(apply=apply, save=save, lock=lock, keep=keep, jobs=jobs, prospect=prospect),
            main="lost",
            blocks=lambda document: _blocks(document, recovery.prediction, loss_blocks(losses)),
            complete=complete,
        )


def _words(options: KeepOptions) -> list[str]:
    """Return the words of the command line that stand for options."""
    words = [*(["--gaps", options.gaps] if options.skips else []), *([] if options.fill else ["--no-fill"])]
    words += [word for path in options.siblings for word in ("--sibling", str(path))]
    words += [word for path in options.sibling_configs for word in ("--sibling-config", str(path))]
    return words + (["--sibling-from", str(options.sibling_from)] if options.sibling_from is not None else [])


def _refuse_to_apply(root: Path, recovery: Recovery, policy: str, *, yes: bool) -> None:
    """Raise FailedError where the policy allows no loss, or no broker would start on the result and the operator has not said yes."""
    if policy == "strict" and (recovery.lost or recovery.losses.begin_is_missing):
        raise FailedError(
            "something is lost, and policy strict allows no loss", to_do="look at the dry run; use --policy keep"
        )
    if recovery.plan.steps and not recovery.after.starts and not yes:
        raise FailedError(
            f"a broker would not start on what the plan leaves: {recovery.after.reason}",
            path=str(root),
            to_do="mend that first, or add --yes to go on all the same",
        )


def _predict_now(ctx: Context, store: Store, report: Path | None) -> int:
    from store_core.recovery.prediction.live_snapshot import predict_live

    with predict_live(store, lambda view, _: _played(ctx, view), lambda told: told.outcome.is_loss) as (view, told):
        return _report_prediction(ctx, view, told, report)


def _predict(ctx: Context, store: Store, report: Path | None) -> int:
    return _report_prediction(ctx, store, _played(ctx, store), report)


def _played(ctx: Context, store: Store) -> Prediction:
    from store_core.recovery.prediction.predict import predict

    with ctx.progress("scan", store.log.size_bytes) as bar:
        return predict(store, on_progress=bar)


def _report_prediction(ctx: Context, store: Store, prediction: Prediction, report: Path | None) -> int:
    from store_core.recovery.losses import losses_predicted

    document: dict[str, Any] = {
        "store": str(store.root),
        "last_exit": "crash" if store.aborted else "clean",
        **prediction.as_json(),
        "losses": losses_predicted(store, prediction.outcome).as_json(),
        "findings": _about_log(store, prediction.outcome),
    }
    losses = losses_in_words(ctx, store, prediction, report)
    ctx.output.emit(
        document,
        rows=[document["prediction"]],
        blocks=lambda: _only_prediction_blocks(document, prediction, loss_blocks(losses)),
    )
    fine = not prediction.outcome.is_loss and not document["findings"]
    return exit_codes.OK if fine else exit_codes.FINDINGS


def _about_log(store: Store, outcome: Outcome) -> list[Finding]:
    """A log that is not there, or whose begin is missing; and one without a record beside queues: nothing in it is lost, but a
    broker deletes every queue."""
    from store_core.check.log_begin import log_begin
    from store_core.read.log_files import missing_log

    lacking = [found for found in missing_log(store) if found.code == "S010"]
    lacking += log_begin(store, live=is_locked(store.root)).findings()
    if not store.queues or outcome.queues:
        return lacking
    if store.log.segments and (not outcome.starts or (outcome.max_phy_offset or 0) > store.log.min_phy_offset):
        return lacking
    what = "there is no log file" if not store.log.segments else "the log holds no record"
    return [finding("S007", f"{what}: a broker deletes all {len(store.queues)} queues at its start"), *lacking]


def _is_log_away(document: dict[str, Any]) -> bool:
    return any(found.code == "S007" for found in document["findings"])


def _blocks(document: dict[str, Any], played: Prediction, losses: Iterator[Block]) -> Iterator[Block]:
    """After an apply what was done and how it stands come first, and what a broker would have done comes last."""
    if _is_log_away(document):  # nothing else is known, and every figure would mislead
        yield Findings(document["findings"])
    elif document["applied"]:
        yield Text(_done(document), "bold green")
        yield _standing(document, "How it stands")
        yield from _loss_blocks(document)
        yield from plan_blocks(document)
        yield from _prediction_blocks(document, played, "Before: what the broker would have done at its next start")
        yield from losses
    else:
        yield from _prediction_blocks(document, played)
        yield _standing(document, "What can be kept")
        yield from _loss_blocks(document)
        yield from losses
        yield from plan_blocks(document)
    verdict = document["verdict"]
    yield from verdict_blocks(verdict, f"Verdict: {verdict['level']}")


def _standing(document: dict[str, Any], title: str) -> Facts:
    """Show what a broker finds once the plan is carried out."""
    after = document["after"]
    facts = {"policy": document["plan"]["policy"], "a broker would start": _yes(after["starts"])}
    if not after["starts"]:
        facts["why"] = after["reason"]
    return Facts({**facts, "end of the log": after["max_phy_offset"]}, title)


def _loss_blocks(document: dict[str, Any]) -> Iterator[Block]:
    """Every message by what becomes of it, then what is lost, queue by queue."""
    losses = document["losses"]
    yield Facts(dict(loss_rows(losses)), "Messages")
    for note in document["plan_notes"]:
        yield Text(f"Note: {note}.")
    taken = [{"sibling": one["sibling"], **range_} for one in document["siblings"] for range_ in one["ranges"]]
    if taken:
        more = f", the first {_MOST_LOST_SHOWN} of {len(taken)} ranges" if len(taken) > _MOST_LOST_SHOWN else ""
        columns = ("sibling", "phy_offset", "size_bytes", "records")
        yield Table(taken[:_MOST_LOST_SHOWN], columns, f"Taken from siblings{more}")
    lost = document["lost"]
    if lost:
        ranges = losses["unreadable_ranges"]
        title = (
            ("Lost with this policy" if document["plan"]["policy"] == "broker" else "Lost either way")
            + f": {_messages(sum(run['messages'] or 0 for run in lost))}"
            + (f", and {ranges} ranges of unknown messages" if ranges else "")
        )
        yield Table(_shown(lost), LOST_COLUMNS, title)
    elif losses["lost_messages"] == 0 and not losses["begin_is_missing"]:
        yield Text("Nothing is lost.", "green")


def _messages(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"


def _done(document: dict[str, Any]) -> str:
    """The whole answer in a line."""
    losses = document["losses"]
    ranges = losses["unreadable_ranges"]
    more = f", and {ranges} ranges of unknown messages" if ranges else ""
    text = f"Done. Kept {document['kept_messages']}, lost {losses['lost_messages']}{more}."
    return text if document["undo_id"] else text.replace("Done", "Nothing had to be changed", 1)


def _only_prediction_blocks(document: dict[str, Any], played: Prediction, losses: Iterator[Block]) -> Iterator[Block]:
    if not _is_log_away(document):
        yield from _prediction_blocks(document, played)
        yield from losses
    if document["findings"]:
        yield Findings(document["findings"])


def _prediction_blocks(
    document: dict[str, Any], played: Prediction, title: str = "What the broker would do at its next start"
) -> Iterator[Block]:
    outcome = played.outcome
    prediction, version = document["prediction"], document["broker_version"]
    possible = version["possible"]
    others = f" (possible: {possible[0]} … {possible[-1]})" if len(possible) > 1 else ""
    facts = {"last exit": document["last_exit"], "broker": f"{version['assumed']}{others}"}
    if not prediction["starts"]:
        facts |= {"would start": "no", "why": prediction["reason"]}
        yield Facts(facts, title)
        return
    facts |= {
        "would start": "yes, and takes no messages" if prediction.get("queue_error") else "yes",
        "recovery": f"{prediction['recovery']}, from {prediction['first_file_scanned'] or 'nowhere'}",
        "log cut at": prediction["max_phy_offset"],
        "log files deleted": len(prediction["deleted_commitlog_files"]),
        "index files deleted": len(prediction["deleted_index_files"]),
        "messages thrown away": outcome.thrown_away_messages,
        "delivered early": len(prediction["delivered_early"]),
        "ghosts": len(prediction["ghosts"]),
    }
    yield Facts(facts, title)
    thrown_away = [run.as_json() for run in outcome.thrown_away[:_MOST_LOST_SHOWN]]
    if thrown_away:
        runs = len(outcome.thrown_away)
        more = f", the first {_MOST_LOST_SHOWN} of {runs} runs" if runs > _MOST_LOST_SHOWN else ""
        yield Table(_shown(thrown_away), LOST_COLUMNS, f"What the broker would throw away{more}")
    for other in played.others:
        yield Text(f"{', '.join(map(str, other.versions))}: {_told(other.outcome, prediction)}.")
    for note in document["notes"]:
        yield Text(f"Note: {note}")


def _told(other: Outcome, prediction: dict[str, Any]) -> str:
    """Say what other releases would do: the loss always, the rest where it differs from what is predicted."""
    if not other.starts:
        return f"does not start ({other.reason})"
    outcome = other.as_json()
    told = [f"throws away {other.thrown_away_messages}", f"ends at {outcome['max_phy_offset']}"]
    if prediction["starts"]:
        for name, text in _ALSO_TOLD.items():
            if outcome[name] != prediction[name]:
                value = outcome[name]
                told.append(text.format(len(value) if isinstance(value, list) else value or "nowhere"))
    return ", ".join(told)


def _shown(lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first runs, with the first few of their keys."""
    return [{**run, "keys": _few(run["keys"])} for run in lost[:_MOST_LOST_SHOWN]]


def _few(keys: list[str]) -> str:
    return ", ".join(keys[:_MOST_KEYS_SHOWN]) + (", …" if len(keys) > _MOST_KEYS_SHOWN else "")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
