"""Predict a broker's start, plan the recovery of a store, and count what is lost (command recover).

Policy ``broker`` is the store that a broker of a release would leave, without resurrected records. File sizes that no file
of the store shows are taken from a sibling, which has the same configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.load import batch_topics_of
from store_core.broker.queue_recovery import QueueState
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Behaviour, Version, behaviour_of
from store_core.check.log_begin import log_begin
from store_core.check.store import check_store
from store_core.derive.queues import file_size_of, same_content
from store_core.errors import FailedError, StoreError, UsageError
from store_core.findings import Finding
from store_core.layout import paths
from store_core.read.index_sizes import index_sizes
from store_core.read.log_files import advised
from store_core.recovery.damage_scan import LogSurvey, survey_log
from store_core.recovery.derived_files import Derivation, DerivedChanges, NewFile, Progress, contents_of
from store_core.recovery.guards import refuse_foreign_store
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.keep_steps import (
    BUILDER,
    chunks_of,
    contents_of_keep,
    keep_plan,
    settings_arguments,
    small_files,
    store_of,
)
from store_core.recovery.log_edits import EditedLog, edited_log
from store_core.recovery.losses import Losses, losses_of
from store_core.recovery.lost_messages import LostMessages
from store_core.recovery.lost_record import LostRun
from store_core.recovery.plan_keep import KeepPlan, plan_keep, walk_rules
from store_core.recovery.plans.plan import Building, Built, Chunk, Contents, Plan, register_builder
from store_core.recovery.prediction.live_snapshot import predict_live
from store_core.recovery.prediction.outcome import Outcome
from store_core.recovery.prediction.predict import Prediction, predict, start_after
from store_core.recovery.recover_notes import beyond_notes, in_recover, loans_of, lost_records_of, notes_of
from store_core.recovery.replica import Siblings
from store_core.scan.walk_progress import WalkProgress
from store_core.storage.buffers import give_freed_memory_back, share_one_heap
from store_core.storage.digest import Hole
from store_core.storage.live import is_live
from store_core.storage.scratch import scratch_folder
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

_CHUNK_SIZE_BYTES: Final = 46 * 20 * 1024  # whole entries of both kinds
_NS_PER_MS: Final = 1_000_000


Policy = Literal["keep", "broker", "strict"]
POLICIES: Final[tuple[Policy, ...]] = ("keep", "broker", "strict")
WALKS: Final = 4  # walks over the log: prediction, check, plan with derived files, start on the planned store
_BROKER_BUILDER: Final = "as-broker"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of planning a recovery.

    * ``after``: the outcome of a broker's start on the recovered store
    * ``lost``: messages that are lost with the plan; ``losses`` counts them; ``lost_records`` has the known fields of each
    * ``given_up``: readable messages that the plan removes; the command applies such a plan only after a confirmation
    * ``notes``: the effects of the options, for the operator
    * ``kept_messages``: good messages that belong into queues
    * ``siblings``: the ranges that are taken from each sibling; ``repaired``: records whose head is repaired
    """

    last_exit: Literal["clean", "crash"]
    prediction: Prediction
    plan: Plan
    after: Outcome
    lost: tuple[LostRun, ...]
    findings: tuple[Finding, ...]
    given_up: tuple[LostRun, ...] = ()
    notes: tuple[str, ...] = ()
    kept_messages: int = 0
    siblings: tuple[dict[str, Any], ...] = ()
    repaired: tuple[dict[str, Any], ...] = ()
    lost_records: tuple[dict[str, Any], ...] = ()
    made: Contents = field(default_factory=dict, repr=False, compare=False)
    losses: Losses = field(default_factory=Losses)

    def as_json(self) -> dict[str, Any]:
        """Return the members of the command's document, without ``store``, ``applied`` and ``undo_id``."""
        return {
            "last_exit": self.last_exit,
            **self.prediction.as_json(),
            "plan": self.plan.summary(),
            "plan_notes": list(self.notes),
            "after": self.after.as_json(),
            "lost": [run.as_json() for run in self.lost],
            "losses": self.losses.as_json(),
            "lost_records": list(self.lost_records),
            "kept_messages": self.kept_messages,
            "siblings": list(self.siblings),
            "repaired": list(self.repaired),
            "given_up": [run.as_json() for run in self.given_up],
            "findings": list(self.findings),
        }


def recover(
    store: Store,
    policy: Policy = "keep",
    version: Version | None = None,
    options: KeepOptions | None = None,
    *,
    jobs: int = 1,
    keep: ExitStack | None = None,
    on_progress: Progress | None = None,
    on_total: Progress | None = None,
) -> Recovery:
    """Predict a broker's start and plan the recovery. The store is only read; scratch files go to the temporary folder.

    Args:
        jobs: threads that walk the log.
        keep: the built files can be read until this stack is closed.
        on_progress: gets the bytes walked so far in all WALKS.
        on_total: gets the bytes of all WALKS, as far as they are known.

    Raises:
        UsageError: the policy is unknown, or the options belong to another policy.
        FailedError: the store cannot be read, or, with policy ``broker``, the broker would not start.
    """
    if policy not in POLICIES:
        raise UsageError(f"unknown policy {policy!r}", to_do=f"one of {', '.join(POLICIES)}")
    share_one_heap()
    options = options or KeepOptions()
    if policy == "broker" and options != KeepOptions():
        raise UsageError("policy broker closes no holes", to_do="use --policy keep with these options")
    refuse_foreign_store(store)
    live = is_live(store.root).live
    with ExitStack() as own:
        stack = own if keep is None else keep
        whole = store
        if options.siblings:
            with Siblings(store, options.siblings, options.sibling_configs) as siblings:
                whole = stack.enter_context(sized_as(store, siblings))
        request = _Request(store, whole, policy, version, options, jobs)

        def work_out(view: Store, opened: ExitStack) -> Recovery:
            walks = WalkProgress(on_progress, view.log.size_bytes, planned=WALKS, on_total=on_total)
            prediction = predict(view, version, on_progress=walks.next())
            # The check runs before the plan, while little else is held in memory.
            checked = check_store(whole, jobs=jobs, live=live, on_progress=walks.next()).findings
            give_freed_memory_back()
            recover_by = _recover_as_broker if policy == "broker" else _recover_keep
            recovery = recover_by(request, view, prediction, checked, walks, opened)
            walks.end()
            return recovery

        if not live:
            return work_out(whole, stack)
        return stack.enter_context(predict_live(whole, work_out, _is_loss))[1]


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of ``recover``. ``whole``: the store, with the siblings' file sizes where its own are not known."""

    store: Store
    whole: Store
    policy: Policy
    version: Version | None
    options: KeepOptions
    jobs: int

    @property
    def last_exit(self) -> Literal["clean", "crash"]:
        return "crash" if self.store.aborted else "clean"


def _is_loss(recovery: Recovery) -> bool:
    return bool(recovery.lost) or recovery.prediction.outcome.is_loss or recovery.after.is_loss


def _recover_keep(
    request: _Request,
    store: Store,
    prediction: Prediction,
    checked: Iterable[Finding],
    walks: WalkProgress,
    stack: ExitStack,
) -> Recovery:
    options = request.options
    rules = walk_rules(store.settings, prediction.assumed)
    found = stack.enter_context(plan_keep(store, rules, options, jobs=request.jobs, walks=walks))
    arguments = {**settings_arguments(store.settings), "version": str(prediction.assumed)}
    built = Built(BUILDER, {**arguments, **({"keep": kept} if (kept := found.options.as_arguments()) else {})})
    plan = replace(keep_plan(store, found, built), policy=request.policy)
    # A plan without steps changes nothing, so the predicted start is the start after it.
    after, starting = prediction.outcome, prediction.assumed
    if plan.steps:
        after, starting = _after(store, starting, found, walks, is_whole=options.fill, version=request.version)
    lost, given_up = found.lost_runs(), tuple(LostMessages(found.given_up).runs())
    losses = Losses() if found.is_empty else _losses(store, prediction, after, found, lost, given_up)
    return Recovery(
        request.last_exit,
        prediction,
        plan,
        after,
        lost,
        in_recover(_findings(checked, (*found.findings, *found.derivation.findings)), plan, options),
        given_up,
        (
            *notes_of(found, after, starting),
            *size_notes(request.store, request.whole, [step.path for step in plan.steps]),
        ),
        found.survey.kept_messages,
        tuple(loans_of(found.options, found.earlier)),
        tuple(repair.as_json() for repair in found.repairs),
        tuple(lost_records_of(store, found)),
        contents_of_keep(store, found),
        losses,
    )


def _losses(
    store: Store,
    prediction: Prediction,
    after: Outcome,
    found: KeepPlan,
    lost: Iterable[LostRun],
    given_up: Iterable[LostRun],
) -> Losses:
    outcome, begin_phy_offset = prediction.outcome, found.edited.log.min_phy_offset
    begin = log_begin(store, begin_phy_offset=begin_phy_offset, last_timestamp_ms=found.survey.last_store_timestamp_ms)
    thrown_away = outcome.thrown_away_messages if outcome.starts else None
    return losses_of(lost, given_up, thrown_away=thrown_away, thrown_away_after=after.thrown_away_messages, begin=begin)


def _recover_as_broker(
    request: _Request,
    store: Store,
    prediction: Prediction,
    checked: Iterable[Finding],
    walks: WalkProgress,
    stack: ExitStack,
) -> Recovery:
    progress = walks.next()
    result = stack.enter_context(broker_result(store, behaviour_of(prediction.assumed), on_progress=progress))
    walks.leave_out()  # queues and index are built in the same walk
    found = KeepPlan(result.survey, [], result.edited, result.derivation)
    found.queue_changes, found.index_changes = result.queue_changes, result.index_changes
    arguments = {**settings_arguments(store.settings), "version": str(prediction.assumed)}
    plan = replace(keep_plan(store, found, Built(_BROKER_BUILDER, arguments)), policy="broker")
    after, _ = _after(store, prediction.assumed, found, walks, is_whole=False, version=request.version)
    unreadable, losses = _unreadable(request, store, prediction)
    lost = (*prediction.outcome.thrown_away, *unreadable)
    findings = in_recover(_findings(checked, result.derivation.findings), plan)
    kept = result.survey.kept_messages
    made = contents_of(found.queue_changes, found.index_changes)
    notes = beyond_notes(store, result.derivation.queue_ends())
    return Recovery(
        request.last_exit,
        prediction,
        plan,
        after,
        lost,
        findings,
        notes=notes,
        kept_messages=kept,
        made=made,
        losses=losses,
    )


def _unreadable(request: _Request, store: Store, prediction: Prediction) -> tuple[tuple[LostRun, ...], Losses]:
    """Return the unreadable messages, which policy ``broker`` also loses, and the counts of all losses."""
    with plan_keep(store, walk_rules(store.settings, prediction.assumed), jobs=request.jobs) as found:
        given_up = set(LostMessages(found.given_up).runs())
        unreadable = tuple(run for run in found.lost_runs() if run not in given_up)
        losses = _losses(store, prediction, prediction.outcome, found, unreadable, ())
    give_freed_memory_back()
    return unreadable, losses


def _findings(checked: Iterable[Finding], assumed: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of the check and those assumptions whose code the check did not report."""
    checked, assumed = tuple(checked), tuple(assumed)
    return tuple(
        advised([*checked, *(found for found in assumed if found.code not in {known.code for known in checked})])
    )


def _after(
    store: Store, assumed: Version, found: KeepPlan, walks: WalkProgress, *, is_whole: bool, version: Version | None
) -> tuple[Outcome, Version]:
    if found.is_empty:
        return start_after(store, assumed, None)
    changes = (found.queue_changes, found.index_changes)
    files, progress, removed = small_files(store, found), walks.more(), (paths.ABORT,)
    return start_after(
        store, assumed, found.edited, changes, files, removed, is_whole=is_whole, version=version, on_progress=progress
    )


def _build_as_broker(building: Building) -> Iterator[Chunk]:
    version = Version.parse(building.arguments["version"])
    with store_of(building) as store, broker_result(store, behaviour_of(version)) as result:
        yield from chunks_of([*result.queue_changes.new, *result.index_changes.new], set(building.paths))


register_builder(_BROKER_BUILDER, _build_as_broker)


@dataclass(slots=True)
class BrokerResult:
    """The log and the queues as the broker leaves them, and an index of the remaining records."""

    start: Start
    edited: EditedLog
    survey: LogSurvey
    derivation: Derivation
    queue_changes: DerivedChanges = field(default_factory=DerivedChanges)
    index_changes: DerivedChanges = field(default_factory=DerivedChanges)


@contextmanager
def broker_result(store: Store, behaviour: Behaviour, *, on_progress: Progress | None = None) -> Iterator[BrokerResult]:
    """Simulate the start and yield the store it would leave. Only scratch files are written.

    Raises:
        FailedError: the broker would not start, or could not create the folder of a queue.
    """
    with ExitStack() as stack:
        start = stack.enter_context(start_broker(store, behaviour, on_progress=on_progress))
        if start.refusal:
            reason = f"a broker would not start on this store: {start.refusal}"
            raise FailedError(reason, path=str(store.root), to_do="use --policy keep")
        if start.dispatcher is not None and start.dispatcher.failed:
            in_the_way = str(store.root / start.dispatcher.failed)
            raise FailedError("a file stands where a folder is needed", path=in_the_way, to_do="move it out of the way")
        edited = edited_log(store, [], start.log.end_phy_offset, cut=True)
        kept = {segment.name for segment in start.log.segments}
        edited.removed += [s for s in edited.segments if s.name not in kept]
        edited.segments = [s for s in edited.segments if s.name in kept]
        scratch = stack.enter_context(scratch_folder())
        view = stack.enter_context(store.with_log(edited.log))
        topics = batch_topics_of(store)
        derivation = stack.enter_context(
            Derivation(store, view, scratch, batch_topics=topics, include_bad_crc=True, walks=False)
        )
        survey = survey_log(view, (derivation.add,), options=derivation.options, on_progress=on_progress)
        derivation.finish()
        result = BrokerResult(start, edited, survey, derivation)
        for state in start.queues:
            _queue_changes(store, state, result)
        result.index_changes = derivation.index_changes()
        yield result


def _queue_changes(store: Store, state: QueueState, result: BrokerResult) -> None:
    is_batch = isinstance(state, BatchQueueState)
    tree = paths.BATCHCONSUMEQUEUE if is_batch else paths.CONSUMEQUEUE
    existing = (store.batch_queues if is_batch else store.queues).get(state.key)
    folder = PurePosixPath(tree) / state.key.topic / str(state.key.queue_id)
    wanted: set[str] = set()
    for start in state.starts:
        made = _file(state, start, str(folder), result.survey.last_store_timestamp_ms)
        wanted.add(PurePosixPath(made.path).name)
        if not same_content(store, store.root / made.path, made):
            result.queue_changes.new.append(made)
    for segment in existing.segments if existing is not None else ():
        if segment.name not in wanted:
            result.queue_changes.removed.append(str(folder / segment.name))


def _file(state: QueueState, start: int, folder: str, mtime_ms: int) -> NewFile:
    size = state.file_size_bytes

    data_bytes = min(max(state.end - start, 0), size) if start == state.starts[-1] else size

    def read() -> Iterator[bytes | Hole]:
        for at in range(start, start + data_bytes, _CHUNK_SIZE_BYTES):
            end = min(at + _CHUNK_SIZE_BYTES, start + data_bytes)
            data = state.in_file(start, at, end).tobytes()
            yield data + bytes(end - at - len(data))
        if data_bytes < size:
            yield Hole(size - data_bytes)

    return NewFile(f"{folder}/{paths.segment_name(start)}", size, mtime_ms * _NS_PER_MS, read, data_bytes)


_SIZED: Final = tuple(f"{tree}/" for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.INDEX))


@contextmanager
def sized_as(store: Store, siblings: Siblings) -> Iterator[Store]:
    """Yield the store with the sizes of queue and index files (store format 4, 5) that only a sibling shows.

    A size that the store itself does not show is taken from the first sibling that shows it, and set as if the broker's
    properties file named it.
    """
    unknown = [sizes_of for sizes_of in _SIZE_READERS if not sizes_of(store)]
    borrowed: dict[str, str] = {}
    for sibling in siblings.stores:
        for sizes_of in unknown:
            with suppress(StoreError):  # an unreadable file of a sibling shows no size
                borrowed = {**sizes_of(sibling), **borrowed}
    if not borrowed:
        yield store
        return
    settings = store.settings
    sized = replace(
        load_settings(root=settings.root, values={**settings.values, **borrowed}),
        commitlog_paths=settings.commitlog_paths,
        writable_commitlog_paths=settings.writable_commitlog_paths,
        broker_version=settings.broker_version,
    )
    with Store(sized) as found:
        yield found


def size_notes(store: Store, sized: Store, made: Iterable[str]) -> tuple[str, ...]:
    """Return a note that names the sizes taken from a sibling, if the plan makes such files.

    ``made``: paths of the plan's files, relative to the root.
    """
    borrowed = [f"{name}={value}" for name, value in sized.settings.values.items() if name not in store.settings.values]
    if not borrowed or not any(path.startswith(_SIZED) for path in made):
        return ()
    return (f"no file of the store shows how long new ones have to be; those of the sibling do: {', '.join(borrowed)}",)


def _queue_sizes(store: Store) -> Mapping[str, str]:
    size = store.settings.queue_file_size_bytes or file_size_of(store.queues.values())
    return {"mappedFileSizeConsumeQueue": str(size)} if size else {}


def _batch_queue_sizes(store: Store) -> Mapping[str, str]:
    size = store.settings.batch_queue_file_size_bytes or file_size_of(store.batch_queues.values())
    return {"mapperFileSizeBatchConsumeQueue": str(size)} if size else {}


def _index_sizes(store: Store) -> Mapping[str, str]:
    sizes = index_sizes(store).sizes
    return {"maxHashSlotNum": str(sizes.slots), "maxIndexNum": str(sizes.entries)} if sizes else {}


_SIZE_READERS: Final[tuple[Callable[[Store], Mapping[str, str]], ...]] = (
    _queue_sizes,
    _batch_queue_sizes,
    _index_sizes,
)
