"""Make the plan of policy ``keep``, and register the builder that an apply calls for its derived files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from store_core.broker.versions import Version
from store_core.derive.checkpoint import rebuilt_checkpoint
from store_core.layout import paths
from store_core.layout.checkpoint import FILE_SIZE_BYTES
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.derived_files import DerivedChanges, NewFile, contents_of
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.lost_config import lowered_progress
from store_core.recovery.plan_keep import KeepPlan, plan_keep, walk_rules
from store_core.recovery.plans.draft import Draft
from store_core.recovery.plans.plan import Building, Built, Chunk, Plan, register_builder
from store_core.storage.databases import runs_under_55
from store_core.storage.digest import Hole
from store_core.storage.settings import Settings, load_settings
from store_core.storage.store import Store
from store_core.storage.write_scope import Places

BUILDER: Final = "salvage"
_NS_PER_MS: Final = 1_000_000


def keep_plan(store: Store, found: KeepPlan, built: Built) -> Plan:
    """Return the plan with its steps in order: log, derived files, checkpoint and progress, and ``abort`` last.

    ``built`` names the builder that makes the derived files again.
    """
    draft = Draft(store.root, writable_roots=outside_roots(store))
    if found.is_empty:
        return draft.plan("recover", "keep")
    found.edited.add_to(draft, built)
    for changes in (found.queue_changes, found.index_changes):
        add_derived(draft, changes, built)
    for name, data in small_files(store, found).items():
        is_checkpoint = name == paths.CHECKPOINT
        mtime_ns = found.survey.last_store_timestamp_ms * _NS_PER_MS if is_checkpoint else None
        draft.write_file(name, data, mtime_ns=mtime_ns, why=_why(found, name))
    if store.aborted:
        abort = store.root / paths.ABORT
        remove = draft.remove_folder if abort.is_dir() else draft.remove_file
        remove(abort, why="nothing is left to recover")
    if len(draft):
        draft.depend_on_the_rest(*store.settings.outside_paths)
    return draft.plan("recover", "keep")


def add_derived(draft: Draft, changes: DerivedChanges, built: Built) -> None:
    """Add derived files as steps whose content a builder makes."""
    for path in changes.removed:
        draft.remove_file(path, why="not what the log says")
    for path in changes.removed_folders:
        draft.remove_folder(path, why="a broker may refuse to start with it")
    for file in changes.new:
        draft.write_file(
            file.path,
            built=replace(built, size_bytes=file.size_bytes, data_bytes=file.data_bytes),
            mtime_ns=file.mtime_ns,
            why="built from the log",
        )


def small_files(store: Store, found: KeepPlan) -> dict[str, bytes]:
    """Return new checkpoint and config files, by their path in the store.

    Only files are returned that were lost, or whose times or offsets are after the end of what they describe.
    """
    checkpoint = _checkpoint_bytes(store, found)
    files = {} if checkpoint is None else {paths.CHECKPOINT: checkpoint}
    if (config := found.configuration) is None:
        return files
    files |= {name: written.data for name, written in config.written.items()}
    return files | lowered_progress(store, found.derivation.queue_ends(), config.files)


def _why(found: KeepPlan, name: str) -> str:
    if name == paths.CHECKPOINT:
        return "times of the log as it is"
    written = found.configuration.written.get(name) if found.configuration else None
    return written.why if written else "nothing after the end of a queue is promised"


def _checkpoint_bytes(store: Store, found: KeepPlan) -> bytes | None:
    """Return the right checkpoint; None if the present one is not ahead of log, queues and index."""
    survey = found.survey
    present = read_checkpoint(store.root)
    full = found.derivation.index_timestamp_ms(present.index_msg_timestamp_ms)
    last = survey.last_store_timestamp_ms
    times = (present.physic_msg_timestamp_ms, present.logics_msg_timestamp_ms)
    is_right = all(0 < time <= last for time in times) or (last == 0 and not any(times))
    in_55 = runs_under_55(store)
    if in_55 and not (
        present.logics_msg_timestamp_ms or present.logics_phy_offset
    ):  # a broker that ran less than a minute leaves this
        is_right |= 0 < present.physic_msg_timestamp_ms <= last
    is_right &= present.logics_phy_offset <= survey.last_phy_offset
    if not present.findings and is_right and 0 <= present.index_msg_timestamp_ms <= full:
        return None
    existing = store.cache.read(store.root / paths.CHECKPOINT, 0, FILE_SIZE_BYTES)
    return rebuilt_checkpoint(
        existing,
        last_store_timestamp_ms=last,
        last_phy_offset=survey.last_phy_offset,
        index_end_timestamp_ms=full,
        with_queue_offset=in_55,
    )


def contents_of_keep(store: Store, found: KeepPlan) -> dict[str, Callable[[], Iterator[bytes | Hole]]]:
    """Return the reader of each file that the plan's builder makes, by the path of its step."""
    places = Places(store.root, outside_roots(store))
    made = {places.name(path): read for path, read in found.edited.made().items()}
    return made | contents_of(found.queue_changes, found.index_changes)


def outside_roots(store: Store) -> list[Path]:
    """Return the log folders outside the root. A plan may name their files; to apply it, the operator names them for writing."""
    return list(store.settings.outside_paths)


def settings_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments with which a builder opens the store as the planning command did."""
    return {
        "values": dict(settings.values),
        "commitlog_paths": [str(path) for path in settings.commitlog_paths],
        "writable_commitlog_paths": [str(path) for path in settings.writable_commitlog_paths],
        **({"broker_version": settings.broker_version} if settings.broker_version else {}),
    }


def store_of(building: Building) -> Store:
    """Open the store that a builder works on. Raises NotAStoreError."""
    arguments: Mapping[str, Any] = building.arguments
    settings = load_settings(
        root=building.root, values=arguments["values"], broker_version=arguments.get("broker_version")
    )
    settings = replace(
        settings,
        commitlog_paths=tuple(Path(p) for p in arguments["commitlog_paths"]),
        writable_commitlog_paths=tuple(Path(p) for p in arguments["writable_commitlog_paths"]),
    )
    return Store.open(building.root, settings)


def chunks_of(files: Iterator[NewFile] | list[NewFile], wanted: set[str]) -> Iterator[Chunk]:
    """Yield the contents of the files named in ``wanted``."""
    for file in files:
        if file.path in wanted:
            for data in file.read():
                yield Chunk(file.path, data)


def _build(building: Building) -> Iterator[Chunk]:
    version = Version.parse(building.arguments["version"])
    options = KeepOptions.of(building.arguments.get("keep", {}))
    with store_of(building) as store, plan_keep(store, walk_rules(store.settings, version), options) as found:
        made = contents_of_keep(store, found)
        yield from (Chunk(path, data) for path in building.paths for data in made[path]())


register_builder(BUILDER, _build)
