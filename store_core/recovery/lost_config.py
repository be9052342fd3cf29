"""Config files that a broker could not load, or only an older copy of (store behaviour 1.1): what can be had of them.

The ``.bak`` becomes the file where a broker would have read it. What is nowhere in the store a sibling may have: a slave gets
these from its master every ten seconds. A list of topics that nobody has is told by the log and the queues, the delay service's
progress by the log (``delays.py``). Consumers' progress is told by nothing else, and is not made up. A store without any config
file is a copy of its log and queues, and stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from store_core.codec.json_dialect import dumps
from store_core.derive.topics import completed_topics, missing_topics
from store_core.layout import paths
from store_core.recovery.delay_progress import DelayLevel
from store_core.storage.config_files import ConfigFile, ConfigFiles, read_config
from store_core.storage.config_text import release_layout, render_delay_offsets
from store_core.storage.store import QueueKey, Store

_SLAVES_HAVE: Final = ("topics", "consumer_offsets", "delay_offsets", "subscription_groups")


@dataclass(frozen=True, slots=True)
class Written:
    """A config file's new text, and where it comes from."""

    data: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """A store's config files as they will be. ``written``: those that are not as they were, by their path in the store.

    ``delays``: what the log tells of the delay service's progress by level, where that was lost.
    """

    files: ConfigFiles
    written: dict[str, Written] = field(default_factory=dict)
    delays: Mapping[int, DelayLevel] = field(default_factory=dict)


def recovered_configuration(
    store: Store,
    siblings: Iterable[Store],
    keys: Iterable[QueueKey],
    delays_of: Callable[[], Mapping[int, DelayLevel]] = dict,
) -> Configuration:
    """``keys``: the queues that the log knows. ``delays_of`` asks the log for the delay service's progress."""
    keys = list(keys)
    files = read_config(store.root)
    layout = release_layout(files)
    found = {name: (file, why) for name, file, why in _copies(files, siblings) if not files.in_rocksdb}
    written = {file.name: Written(dumps(file.tree, layout=layout).encode(), why) for file, why in found.values()}
    copies: dict[str, Any] = {name: replace(file, source="main", findings=()) for name, (file, _) in found.items()}
    files = replace(files, **copies)
    delays: Mapping[int, DelayLevel] = {}
    if files.has_lost(files.delay_offsets) and any(key.topic == paths.SCHEDULE_TOPIC for key in keys):
        delays = delays_of()
    if delays:
        offsets = {level: told.queue_offset for level, told in delays.items()}
        text = render_delay_offsets(offsets, layout, max(told.last_timestamp_ms for told in delays.values()))
        written[files.delay_offsets.name] = Written(text.encode(), "delivered is what stands in the log a second time")
    if files.has_lost(files.topics):
        batch_topics = {key.topic for key in store.batch_queues}
        missing = missing_topics(sorted({*store.queues, *store.batch_queues, *keys}), ())
        document = completed_topics({}, missing, with_attributes=layout != "4", batch_topics=batch_topics)
        data = dumps(document, layout=layout).encode()
        written[files.topics.name] = Written(data, "the topics that the log and the queues know")
    return Configuration(files, written, delays)


def _copies(files: ConfigFiles, siblings: Iterable[Store]) -> Iterator[tuple[str, ConfigFile, str]]:
    """Files to be written, by the names of their fields."""
    others = [read_config(sibling.root) for sibling in siblings]
    for name in (each.name for each in fields(files)):
        file = getattr(files, name)
        if not isinstance(file, ConfigFile) or file.source == "main" or file.too_large:
            continue
        if file.source == "bak":
            yield name, file, "its .bak, which a broker would read"
        elif name in _SLAVES_HAVE:
            have = [mine for other in others if (mine := getattr(other, name)).source != "none"]
            yield from ((name, mine, "as the sibling has it") for mine in have[:1])
