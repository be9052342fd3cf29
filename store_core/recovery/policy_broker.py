"""Plan the store that a broker of a release would leave, without resurrected records (policy ``broker``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from store_core.broker.batch_queue import BatchQueueState
from store_core.broker.load import batch_topics_of
from store_core.broker.queue_recovery import QueueState
from store_core.broker.start import Start, start_broker
from store_core.broker.versions import Behaviour
from store_core.derive.queues import same_content
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.recovery.damage_scan import LogSurvey, survey_log
from store_core.recovery.derived_files import Derivation, DerivedChanges, NewFile, Progress
from store_core.recovery.log_edits import EditedLog, edited_log
from store_core.storage.digest import Hole
from store_core.storage.scratch import scratch_folder
from store_core.storage.store import Store

_CHUNK_SIZE_BYTES: Final = 46 * 20 * 1024  # whole entries of both kinds
_NS_PER_MS: Final = 1_000_000


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
