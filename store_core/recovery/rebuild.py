"""Plan to rebuild queues, index, checkpoint or topics from the log as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from store_core.broker.load import batch_topics_of
from store_core.codec.json_dialect import dumps
from store_core.derive.checkpoint import rebuilt_checkpoint
from store_core.derive.queues import Entry
from store_core.derive.topics import completed_topics, missing_topics
from store_core.errors import FailedError, UsageError
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT, FILE_SIZE_BYTES
from store_core.layout.queue import ENTRY
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.damage_scan import LogSurvey, survey_log
from store_core.recovery.derived_files import Derivation, DerivedChanges, contents_of
from store_core.recovery.guards import refuse_foreign_store
from store_core.recovery.keep_steps import add_derived, chunks_of, settings_arguments, store_of
from store_core.recovery.losses import Planned
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Building, Built, Chunk, register_builder
from store_core.recovery.prediction.predict import predict, store_after_plan
from store_core.scan.log import Progress
from store_core.scan.walk_progress import WalkProgress
from store_core.storage.buffers import share_one_heap
from store_core.storage.config_files import read_config
from store_core.storage.config_text import release_layout
from store_core.storage.databases import runs_under_55
from store_core.storage.scratch import scratch_folder
from store_core.storage.store import QueueKey, Store

PARTS: Final = ("queues", "index", "checkpoint", "topics")
WALKS: Final = 2  # of planning over the log: the survey with its derived files, and the predicted start
_BUILDER: Final = "rebuild"
_OF_QUEUES: Final = frozenset({"logics_msg_timestamp_ms", "logics_phy_offset"})


def rebuild(
    store: Store, what: str, *, jobs: int = 1, keep: ExitStack | None = None, on_progress: Progress | None = None
) -> Planned:
    """Plan the changes that make a derived part agree with the log.

    Records with a wrong body checksum keep their entries, as a broker's dispatch never checks it. If a record cannot be read,
    its existing entry is kept.

    Args:
        what: one of PARTS, or ``all``.
        jobs: number of threads that walk the log.
        keep: the built content can be read as long as this is open.
        on_progress: gets the bytes walked in all WALKS.

    Raises:
        UsageError: the part is unknown.
        FailedError: the log has no record to build from.
    """
    share_one_heap()
    refuse_foreign_store(store)
    parts = PARTS if what == "all" else (what,)
    if not set(parts) <= set(PARTS):
        raise UsageError(f"cannot rebuild {what!r}", to_do=f"one of {', '.join(PARTS)}, all")
    walks = WalkProgress(on_progress, store.log.size_bytes)
    with ExitStack() as own_stack:
        stack = own_stack if keep is None else keep
        derivation, survey, changes = stack.enter_context(_derived(store, parts, walks, jobs))
        draft = Draft(store.root)
        built = Built(_BUILDER, {**settings_arguments(store.settings), "parts": list(parts)})
        for change in changes:
            add_derived(draft, change, built)
        files: dict[str, bytes] = {}
        if "checkpoint" in parts:
            files |= _checkpoint(store, derivation, survey)
        if "topics" in parts:
            files |= _topics(store, derivation)
        for name, data in files.items():
            draft.write_file(name, data, why="what the log says")
        if len(draft):
            draft.depend_on_the_rest(*store.settings.outside_paths)
        with store_after_plan(store, None, changes, files) as shadow:
            after = predict(shadow, on_progress=walks.next()).outcome
        made = contents_of(*changes)
        return Planned(draft.plan("rebuild"), after, (*survey.findings, *derivation.findings), made=made)


@contextmanager
def _derived(
    store: Store, parts: tuple[str, ...], walks: WalkProgress, jobs: int = 1
) -> Iterator[tuple[Derivation, LogSurvey, list[DerivedChanges]]]:
    with scratch_folder() as scratch:
        topics = batch_topics_of(store)
        with Derivation(
            store,
            store,
            scratch,
            batch_topics=topics,
            include_bad_crc=True,
            index_wanted=parts == ("index",),
            walks=False,
        ) as derivation:
            options = replace(derivation.options, jobs=jobs)
            survey = survey_log(store, (derivation.add,), options=options, on_progress=walks.next())
            if not survey.messages and (store.queues or store.index_files):
                raise FailedError(
                    "the log holds no record, while queues or index files stand",
                    path=str(store.root),
                    to_do="check that the log's disk is mounted",
                )
            derivation.finish()
            changes = []
            if "queues" in parts:
                changes.append(derivation.queue_changes(lambda key, number: _existing_entry(store, key, number)))
            if "index" in parts:
                changes.append(derivation.index_changes())
            yield derivation, survey, changes


def _existing_entry(store: Store, key: QueueKey, queue_offset: int) -> Entry | None:
    """Return the existing entry at a number without a message, or None."""
    files = store.queues.get(key)
    data = files.read(queue_offset * ENTRY.size_bytes, ENTRY.size_bytes) if files is not None else b""
    if len(data) < ENTRY.size_bytes:
        return None
    found = ENTRY.struct.unpack(data)
    return (found[0], found[1], found[2]) if found[0] >= 0 and found[1] > 0 else None


def _checkpoint(store: Store, derivation: Derivation, survey: LogSurvey) -> dict[str, bytes]:
    path = store.root / paths.CHECKPOINT
    existing = store.cache.read(path, 0, FILE_SIZE_BYTES) if path.is_file() else b""
    data = rebuilt_checkpoint(
        existing,
        last_store_timestamp_ms=survey.last_store_timestamp_ms,
        last_phy_offset=survey.last_phy_offset,
        index_end_timestamp_ms=derivation.index_timestamp_ms(read_checkpoint(store.root).index_msg_timestamp_ms),
        with_queue_offset=runs_under_55(store),
    )
    return {} if data == existing else {paths.CHECKPOINT: data}


def _topics(store: Store, derivation: Derivation) -> dict[str, bytes]:
    config = read_config(store.root)
    config.topics.refuse_too_large()
    keys = {*store.queues, *store.batch_queues, *derivation.queue_keys}
    missing = missing_topics(sorted(keys), config.topic_names)
    if not missing:
        return {}
    layout = release_layout(config)
    document = config.topics.tree or {}
    completed = completed_topics(
        document, missing, with_attributes=layout != "4", batch_topics={key.topic for key in store.batch_queues}
    )
    return {config.topics.name: dumps(completed, layout=layout).encode()}


def _build(building: Building) -> Iterator[Chunk]:
    parts = tuple(building.arguments["parts"])
    with store_of(building) as store, _derived(store, parts, WalkProgress(None, 0)) as (_, _, changes):
        yield from chunks_of([file for change in changes for file in change.new], set(building.paths))


register_builder(_BUILDER, _build)


def set_checkpoint(store: Store, values: Mapping[str, int]) -> Planned:
    """Work out a checkpoint with these fields set and all others as they stand (0 where there is no file).

    Raises UsageError for an unknown field, a negative value, or one of the queues' time and offset without the other where there is an offset, FailedError where the file cannot be read.
    """
    fields = _fields(store, values)
    data = CHECKPOINT.struct.pack(*fields.values()).ljust(FILE_SIZE_BYTES, b"\0")
    draft = Draft(store.root)
    if store.cache.read(store.root / paths.CHECKPOINT, 0, FILE_SIZE_BYTES + 1) != data:
        draft.write_file(paths.CHECKPOINT, data, why="set by hand")
    with store_after_plan(store, None, files={paths.CHECKPOINT: data}) as shadow:
        after = predict(shadow).outcome
    return Planned(draft.plan("checkpoint"), after, read_checkpoint(store.root).findings)


def _fields(store: Store, values: Mapping[str, int]) -> dict[str, int]:
    standing = read_checkpoint(store.root)
    fields = {name: getattr(standing, name) for name in CHECKPOINT.names}
    for name, value in values.items():
        if name not in fields:
            raise UsageError(f"the checkpoint has no field {name!r}", to_do=f"one of {', '.join(fields)}")
        if not 0 <= value < 1 << 63:
            raise UsageError(f"{value} does not fit {name}", to_do="give a number from 0 on")
        fields[name] = value
    named = _OF_QUEUES.intersection(values)
    if len(named) == 1 and (standing.logics_phy_offset or fields["logics_phy_offset"]):
        other = next(iter(_OF_QUEUES - named))
        raise UsageError(
            f"{next(iter(named))} is set without {other}: brokers of 5.5 go by both",
            to_do=f"set {other} as well",
        )
    return fields
