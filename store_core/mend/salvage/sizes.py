"""How long new files are to be where the store has none that tells: a copy of it has such files, and the same configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from store_core.layout import paths
from store_core.mend.salvage.derived import file_size_of
from store_core.mend.salvage.sibling import Siblings
from store_core.read.index import index_sizes
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

_SIZED: Final = tuple(f"{tree}/" for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.INDEX))


@contextmanager
def sized_as(store: Store, siblings: Siblings) -> Iterator[Store]:
    """The store as if its broker's properties file named the sizes of queue and index files (store format 4, 5) that
    nothing of it tells, and the first sibling with such files does."""
    told = {name: value for sibling in reversed(siblings.stores) for name, value in _told_by(sibling).items()}
    told = {name: value for name, value in told.items() if name not in _told_by(store)}
    if not told:
        yield store
        return
    settings = store.settings
    sized = replace(
        load_settings(root=settings.root, values={**settings.values, **told}),
        commitlog_paths=settings.commitlog_paths,
        writable_commitlog_paths=settings.writable_commitlog_paths,
        broker_version=settings.broker_version,
    )
    with Store(sized) as found:
        yield found


def size_notes(store: Store, sized: Store, made: Iterable[str]) -> tuple[str, ...]:
    """What was taken over, where files are made that it is for; ``made``: their paths from the root."""
    told = [f"{name}={value}" for name, value in sized.settings.values.items() if name not in store.settings.values]
    if not told or not any(path.startswith(_SIZED) for path in made):
        return ()
    return (f"no file of the store tells how long new ones are to be; those of the sibling do: {', '.join(told)}",)


def _told_by(store: Store) -> dict[str, str]:
    """What a store's files or its configuration tell, by the names of properties."""
    settings = store.settings
    queues = settings.queue_file_size_bytes or file_size_of(store.queues.values())
    batch_queues = settings.batch_queue_file_size_bytes or file_size_of(store.batch_queues.values())
    slots, entries = settings.index_slots, settings.index_entries
    if store.index_files:
        sizes = index_sizes(store)
        if not sizes.findings:
            slots, entries = sizes.slots, sizes.entries
    sizes_by_name = {
        "mappedFileSizeConsumeQueue": queues,
        "mapperFileSizeBatchConsumeQueue": batch_queues,
        "maxHashSlotNum": slots,
        "maxIndexNum": entries,
    }
    return {name: str(size) for name, size in sizes_by_name.items() if size}
