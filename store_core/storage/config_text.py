"""Render changed config files, keeping other members, their order and the release's form (store format, 9.2 to 9.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store_core.codec.coerce import as_int
from store_core.codec.config_fields import KEY_SEPARATOR
from store_core.codec.json_dialect import Layout, dumps
from store_core.storage.config_files import ConfigFiles

_LAYOUTS: tuple[Layout, ...] = ("4", "5", "5.4", "5.5")


def release_layout(config: ConfigFiles, default: Layout = "5") -> Layout:
    """Return the newest form that any of a store's config files has; the default if no file shows one.

    If 5.5 was the last to start on the store, that is the form of 5.5, which only a file with an empty map shows.
    """
    seen = {file.layout for file in config.files}
    newest = next((layout for layout in reversed(_LAYOUTS) if layout in seen), default)
    return "5.5" if config.of_55 and newest != "4" else newest


def render_consumer_offsets(
    config: ConfigFiles,
    updates: Mapping[tuple[str, str, int], int],
    layout: Layout | None = None,
    *,
    timestamp_ms: int | None = None,
) -> str:
    """Return the text of ``config.progress`` with the ``updates``: next offsets by (group, topic, queue id).

    The list of a group's topics, which 5.x also writes and never reads, is kept up to date. ``config.progress.name`` is the
    file that the text belongs to. With ``timestamp_ms`` (now) the data version that 5.x keeps is raised.
    """
    config.progress.refuse_too_large()
    layout = layout or release_layout(config)
    root = _members(config.progress.tree)
    offsets = root["offsetTable"] = _members(root.get("offsetTable"))
    topics = _members(root.get("groupTopicMap"))
    for (group, topic, queue_id), offset in updates.items():
        key = f"{topic}{KEY_SEPARATOR}{group}"
        offsets[key] = dict(sorted({**_by_number(offsets.get(key)), queue_id: offset}.items()))
        listed = topics.get(group)
        if not isinstance(listed, list):
            topics[group] = [topic]
        elif topic not in listed:
            topics[group] = type(listed)([*listed, topic])  # a copy, for the parsed tree is shared
    if layout != "4":
        root["groupTopicMap"] = topics
        if timestamp_ms is not None:
            root["dataVersion"] = _raised(root.get("dataVersion"), timestamp_ms, layout)
    return dumps(_in_bean_order(root), layout=layout)


def render_topics(
    config: ConfigFiles, additions: Mapping[str, dict[str, Any]], timestamp_ms: int, layout: Layout | None = None
) -> str:
    """Return the text of ``topics.json`` with topics added or replaced and its data version raised (``timestamp_ms``: now)."""
    config.topics.refuse_too_large()
    layout = layout or release_layout(config)
    root = _members(config.topics.tree)
    root["topicConfigTable"] = {**_members(root.get("topicConfigTable")), **additions}
    root["dataVersion"] = _raised(root.get("dataVersion"), timestamp_ms, layout)
    return dumps(_in_bean_order(root), layout=layout)


def render_delay_offsets(offsets: Mapping[int, int], layout: Layout, timestamp_ms: int) -> str:
    """Return the text of a new ``delayOffset.json``: the next queue offset by level.

    ``timestamp_ms`` is that of the data version, which 4.x does not write.
    """
    root: dict[str, Any] = {"offsetTable": dict(sorted(offsets.items()))}
    if layout != "4":
        root["dataVersion"] = _raised(None, timestamp_ms, layout)
    return dumps(_in_bean_order(root), layout=layout)


def _raised(version: Mapping[str, Any] | None, timestamp_ms: int, layout: Layout) -> dict[Any, Any]:
    """Return a data version with its counter raised by one, as a bean."""
    version = version or {}
    raised = {"counter": as_int(version.get("counter"), "counter") + 1, "timestamp": timestamp_ms}
    if layout != "4":
        raised["stateVersion"] = as_int(version.get("stateVersion"), "stateVersion")
    return _in_bean_order(raised)


def _in_bean_order(members: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a bean's members in the order in which brokers write them."""
    return dict(sorted(members.items(), key=lambda member: str(member[0])))


def _by_number(value: Any) -> dict[int, Any]:
    """Return a queue table with integer keys, however they were written."""
    return {as_int(key, "queue id"): offset for key, offset in _members(value).items()}


def _members(value: Any) -> dict[Any, Any]:
    """Return a copy of an object's members; an empty one if ``value`` is no object."""
    return dict(value) if isinstance(value, dict) else {}
