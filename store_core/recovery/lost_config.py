"""Recover config files that a broker could not load, or only from an older copy (store behaviour 1.1).

* The ``.bak`` becomes the file if a broker would read it.
* A file that is not in the store is taken from a sibling: a slave gets these files from its master every ten seconds.
* A list of topics that is found nowhere is made from the log and the queues; the progress of the delay service from the
  log (``delay_progress``).
* Consumers' progress has no other source, so it is not recovered.
* A store without any config file is a copy of log and queues, and gets none.
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
    """A config file's new text, and its source."""

    data: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The config files after the plan. ``written``: those that change, by their path in the store.

    ``delays``: the delay service's progress by level, found in the log if its file was lost.
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
    """Return the config files after the plan.

    ``keys``: the queues of the log's messages. ``delays_of`` finds the delay service's progress in the log.
    """
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
        offsets = {level: delay.queue_offset for level, delay in delays.items()}
        text = render_delay_offsets(offsets, layout, max(delay.last_timestamp_ms for delay in delays.values()))
        written[files.delay_offsets.name] = Written(text.encode(), "delivered is what stands in the log a second time")
    if files.has_lost(files.topics):
        batch_topics = {key.topic for key in store.batch_queues}
        missing = missing_topics(sorted({*store.queues, *store.batch_queues, *keys}), ())
        document = completed_topics({}, missing, with_attributes=layout != "4", batch_topics=batch_topics)
        data = dumps(document, layout=layout).encode()
        written[files.topics.name] = Written(data, "the topics that the log and the queues know")
    return Configuration(files, written, delays)


def _copies(files: ConfigFiles, siblings: Iterable[Store]) -> Iterator[tuple[str, ConfigFile, str]]:
    """Yield the files that replace lost ones: the name of the field of ConfigFiles, the file, and the reason."""
    sibling_configs = [read_config(sibling.root) for sibling in siblings]
    for name in (config_field.name for config_field in fields(files)):
        file = getattr(files, name)
        if not isinstance(file, ConfigFile) or file.source == "main" or file.too_large:
            continue
        if file.source == "bak":
            yield name, file, "its .bak, which a broker would read"
        elif name in _SLAVES_HAVE:
            candidates = [
                sibling_file for other in sibling_configs if (sibling_file := getattr(other, name)).source != "none"
            ]
            yield from ((name, sibling_file, "as the sibling has it") for sibling_file in candidates[:1])
