"""Take file sizes that no file of the store shows from a sibling, which has the same configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from store_core.errors import StoreError
from store_core.layout import paths
from store_core.read.index_sizes import index_sizes
from store_core.recovery.derived_files import file_size_of
from store_core.recovery.replica import Siblings
from store_core.storage.settings import load_settings
from store_core.storage.store import Store

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


def _queues(store: Store) -> Mapping[str, str]:
    size = store.settings.queue_file_size_bytes or file_size_of(store.queues.values())
    return {"mappedFileSizeConsumeQueue": str(size)} if size else {}


def _batch_queues(store: Store) -> Mapping[str, str]:
    size = store.settings.batch_queue_file_size_bytes or file_size_of(store.batch_queues.values())
    return {"mapperFileSizeBatchConsumeQueue": str(size)} if size else {}


def _index(store: Store) -> Mapping[str, str]:
    sizes = index_sizes(store).sizes
    return {"maxHashSlotNum": str(sizes.slots), "maxIndexNum": str(sizes.entries)} if sizes else {}


_SIZE_READERS: Final[tuple[Callable[[Store], Mapping[str, str]], ...]] = (_queues, _batch_queues, _index)
