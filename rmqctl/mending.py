"""Share the steps of mending commands: settle interrupted changes; show, save and carry out the plan; check the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl import exit_codes
from rmqctl.context import Context, confirm, exit_for_findings
from rmqctl.output.cells import Column
from store_core.errors import UsageError
from store_core.findings import Finding

if TYPE_CHECKING:
    from rmqctl.output.document import Block
    from store_core.recovery.apply.finish_interrupted import Settled
    from store_core.recovery.losses import Planned
    from store_core.recovery.plans.plan import Contents, Plan
    from store_core.recovery.recover import Recovery
    from store_core.recovery.verdict import Prospect
    from store_core.storage.lock import StoreLock
    from store_core.storage.settings import Settings

ApplyOption = Annotated[bool, typer.Option("--apply", help="Carry the plan out. Without it nothing is changed.")]
SaveOption = Annotated[
    Path | None, typer.Option("--save", metavar="PLAN.json", help="Save the plan, for `rmqctl apply`.")
]
LOST_COLUMNS = (
    "topic",
    "queue_id",
    "first_queue_offset",
    "last_queue_offset",
    "messages",
    "bytes",
    Column("keys", drop=1),
)
STEP_FIELDS = ("op", "path", "offset", "size_bytes", "expect_crc32c")
_MOST_STEPS_SHOWN = 20
_MOST_KEYS_SHOWN = 3


@contextmanager
def at_work(ctx: Context, settings: Settings, *, apply: bool) -> Iterator[StoreLock | None]:
    """Yield the store's lock while a plan is made and carried out; without ``apply``, None and a warning of other processes.

    The lock is taken before the store is read, so that the plan fits the store it changes. Then an interrupted change is
    finished or rolled back.

    Raises:
        StoreInUseError: a broker or another rmqctl is at work.
        UsageError: the store is in an object store.
    """
    root = settings.root
    ctx.refuse_remote()
    if not root.is_dir():
        yield None
    elif apply:
        from store_core.recovery.apply.finish_interrupted import changing, settle
        from store_core.storage.journal import list_ids
        from store_core.storage.store import Store

        Store.open(settings.root, settings).close()  # raises NotAStoreError
        outside = settings.writable_outside_paths()
        with changing(root, outside, None, None) as (writer, lock):
            settle(writer, lock, partial(report_finished, ctx))
            yield lock
            if lock.created and not list_ids(root):  # no change was made, so the lock file this command created goes
                lock.remove_file()
    else:
        _warn_of_others(ctx, root)
        yield None


def report_finished(ctx: Context, settled: Settled) -> None:
    """Note the outcome of an interrupted change."""
    ctx.note(f"an interrupted {settled.kind or 'change'} ({settled.id}) was {settled.outcome}")


def _warn_of_others(ctx: Context, root: Path) -> None:
    from store_core.storage.live import is_live

    if is_live(root).live:
        ctx.warn("another process is at work on this store: what is read may change, and --apply is refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrying:
    """Options of carrying a plan out.

    * ``lock``: the store's lock if ``at_work`` took it
    * ``keep``: resources of planning; closed as soon as the plan is carried out
    * ``jobs``: threads of the closing check
    * ``prospect``: saved with the plan, for the verdict of ``rmqctl apply``
    """

    apply: bool
    save: Path | None
    lock: StoreLock | None
    keep: ExitStack
    jobs: int = 1
    prospect: Prospect | None = None


def conclude(
    ctx: Context,
    settings: Settings,
    planned: Planned | Recovery,
    how: Carrying,
    *,
    main: Literal["steps", "lost"] = "steps",
    blocks: Callable[[dict[str, Any]], Iterable[Block]] | None = None,
    complete: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Save the plan and carry it out, each if asked for; show the result and return the exit code.

    After applying, the document's ``findings`` are those of the closing check.

    Args:
        main: the list that ``csv`` and the like write.
        blocks: builds the layout for people from the document; the plan's own layout by default.
        complete: adds members to the document once its findings are final.
    """
    done, code = _carry_out(ctx, settings, planned, how)
    document = {"store": str(settings.root), **planned.as_json(), **done}
    if complete is not None:
        complete(document)
    rows, fields = (document["lost"], LOST_COLUMNS) if main == "lost" else (document["plan"]["steps"], STEP_FIELDS)
    ctx.output.emit(
        document,
        rows=rows,
        fields=[Column.of(column).key for column in fields],
        blocks=lambda: (blocks or plan_blocks)(document),
    )
    return code


def _carry_out(
    ctx: Context, settings: Settings, planned: Planned | Recovery, how: Carrying
) -> tuple[dict[str, Any], int]:
    """Save and apply the plan as asked, and return what was done as members of the document, with the exit code.

    The plan's JSON is made after that, since it takes much memory where there are many queues.
    """
    from store_core.storage.buffers import give_freed_memory_back

    plan = planned.plan
    if how.save is not None:
        save_carefully(plan, how.save, settings, planned.as_json(), how.prospect)
        ctx.note(f"plan {plan.id} saved as {how.save}")
    if not how.apply:
        found_something = bool(plan.steps or planned.lost)
        code = exit_codes.FINDINGS if found_something else exit_for_findings(planned.findings)
        return {"applied": False, "undo_id": None}, code
    undo_id = apply_plan(ctx, settings, plan, how.lock, planned.made) if plan.steps else None
    how.keep.close()
    give_freed_memory_back()
    findings = closing_check(ctx, settings, how.jobs)
    return {"applied": True, "undo_id": undo_id, "findings": findings}, exit_after_apply(findings)


def exit_after_apply(findings: Iterable[Finding]) -> int:
    """Return 0 if the closing check finds nothing but information and the log's missing start, else 3."""
    from store_core.check.log_begin import besides_missing_begin

    return exit_for_findings(besides_missing_begin(findings))


def save_carefully(
    plan: Plan, path: Path, settings: Settings, document: Mapping[str, Any], prospect: Prospect | None = None
) -> None:
    """Write a plan file with the outcome in ``document`` and the settings. It replaces no file but an older plan.

    Raises UsageError for any other file, and for a place inside the store.
    """
    from store_core.recovery.plans.plan_json import OUTLOOK, PROSPECT, MadeWith, load_plan, save_plan
    from store_core.storage.modes import no_wider_than
    from store_core.storage.remote_path import real_path

    real = real_path(path)
    if real.is_relative_to(real_path(settings.root)):
        raise UsageError("a plan is not saved inside the store", path=str(path), to_do="name a file elsewhere")
    if str(path) == "-" or not real.parent.is_dir():
        raise UsageError("no place for a plan", path=str(path), to_do="name a file in a folder that is there")
    if os.path.lexists(real):
        if not real.is_file():
            raise UsageError("not a plain file", path=str(path), to_do="name another file for the plan")
        try:
            load_plan(real)
        except (UsageError, OSError):
            to_do = "name another file, or remove this one first"
            raise UsageError("there is a file that is no plan", path=str(path), to_do=to_do) from None
    outside = tuple(str(folder) for folder in settings.outside_paths if folder in settings.writable_commitlog_paths)
    made_with = MadeWith(settings.values, outside, settings.broker_version)
    outlook: dict[str, Any] = {**{name: document[name] for name in OUTLOOK}, "made_with": made_with.as_json()}
    if prospect is not None:
        outlook[PROSPECT] = prospect.as_json()
    with no_wider_than([settings.root]):
        save_plan(plan, path, outlook)


def apply_plan(
    ctx: Context, settings: Settings, plan: Plan, lock: StoreLock | None = None, made: Contents | None = None
) -> str:
    """Carry a plan out and return the undo id. ``lock``: the store's lock if already held; ``made``: as for ``apply``."""
    from store_core.recovery.apply.apply import apply
    from store_core.recovery.plans.plan import work_size_bytes

    with ctx.progress("apply", work_size_bytes(plan)) as bar:
        outside = settings.writable_outside_paths()
        applied = apply(plan, settings.root, writable_roots=outside, lock=lock, made=made, on_progress=bar)
    ctx.note(f"done; `rmqctl undo {applied.undo_id} --apply` takes it back, `--forget` drops the kept bytes")
    return applied.undo_id


def closing_check(ctx: Context, settings: Settings, jobs: int = 1) -> list[Finding]:
    """Return the findings of a full check of the store as it is now."""
    from store_core.check.store import check_store
    from store_core.storage.store import Store

    with Store.open(settings.root, settings) as store, ctx.progress("check", store.log.size_bytes, known=True) as bar:
        return check_store(store, jobs=jobs, on_progress=bar).findings


def refuse_unconfirmed(ctx: Context, given_up: Sequence[Any], *, apply: bool, yes: bool) -> None:
    """Ask the user before ``apply`` gives up readable messages. Raises UsageError if the answer is no."""
    if apply and given_up:
        names = ", ".join(f"{run.topic}/{run.queue_id} {run.first_queue_offset}" for run in given_up)
        if not confirm(ctx, f"readable messages must be given up: {names}. Go on?", yes):
            raise UsageError("not confirmed", to_do="nothing was changed")


def with_few_keys(lost: Iterable[Any]) -> list[dict[str, Any]]:
    """Return lost runs for people, with the first few of their keys."""
    return [
        {**run, "keys": ", ".join([*run["keys"][:_MOST_KEYS_SHOWN], *["…"][: len(run["keys"]) > _MOST_KEYS_SHOWN]])}
        for run in lost
    ]


def cut_blocks(label: str, key: str, document: dict[str, Any]) -> Iterator[Block]:
    """Yield what a shortened log loses, then the plan, for people. ``label`` and ``key``: its new end or start, in the predicted outcome."""
    from rmqctl.output.document import Facts, Table

    yield Table(with_few_keys(document["lost"]), LOST_COLUMNS, "What goes", empty="no message goes")
    losses = document["losses"]
    yield Facts(
        {
            "readable messages that go": losses["given_up_messages"],
            "unreadable already": losses["unreadable_messages"],
            label: document["after"][key],
        }
    )
    yield from plan_blocks(document)


def plan_blocks(document: dict[str, Any]) -> Iterator[Block]:
    """Yield the plan, its outcome and the findings, for people."""
    from rmqctl.output.document import Findings, Table, Text

    plan = document["plan"]
    steps = plan["steps"]
    if steps:
        shown = steps[:_MOST_STEPS_SHOWN]
        more = f", the first {len(shown)} of {len(steps)} steps" if len(shown) < len(steps) else ""
        yield Table(shown, ("op", "path", "offset", "size_bytes"), f"Plan {plan['id']}{more}")
    else:
        yield Text("Nothing to change.")
    if document.get("undo_id"):
        yield Text(f"Applied. Undo id: {document['undo_id']}.", "bold green")
    elif steps:
        yield Text("Nothing has been changed. Add --apply to carry the plan out.", "bold")
    yield Findings(document["findings"])
