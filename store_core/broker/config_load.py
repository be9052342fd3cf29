"""A JSON config file as a broker comes to it: the file, its ``.bak``, nothing, or a load that fails (behaviour 1.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from store_core.codec.config_parse import parse_config
from store_core.codec.json_dialect import MAX_SIZE_BYTES, JsonError, JsonTooLargeError
from store_core.layout import paths
from store_core.storage.remote_path import names_of
from store_core.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from store_core.broker.versions import Behaviour

# In the order a broker loads them; the second part only since 5.0.0.
CONFIG_FILES: Final = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "consumerFilter.json")
CONFIG_FILES_OF_5: Final = (
    "topics.json",
    "topicQueueMapping.json",
    "consumerOffset.json",
    "subscriptionGroup.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
)
DELAY_PROGRESS: Final = "delayOffset.json"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A JSON config file as a broker comes to it. ``unusable``: the broker fails to load it.

    ``why``: what is wrong in a file that is JSON; "" where it is none, or nothing is wrong.
    """

    value: Any = None
    damaged_main: bool = False
    unusable: bool = False
    why: str = field(default="", compare=False)


def read_config(store: Store, name: str, behaviour: Behaviour | None = None) -> ConfigFile:
    """The main file; its ``.bak`` where that is missing, empty or damaged; nothing where that is missing or empty too.

    ``behaviour``: the release that loads it, which may fail over values of a wrong type; None asks whether it is JSON. Nothing,
    too, where a file is too large for us: it counts as one that a broker reads. A folder is a file that it fails to read.
    """
    path = store.root / paths.CONFIG / name
    main = _read(store, path, behaviour)
    if main.loads or main.is_too_large:
        return ConfigFile(main.value)
    damaged = path.exists()
    copy_path = path.with_name(name + paths.BAK_SUFFIX)
    copy = _read(store, copy_path, behaviour)
    if copy.loads or (copy.is_empty and not copy_path.is_dir()):
        return ConfigFile(copy.value, damaged, why=main.why)
    return ConfigFile(None, damaged, unusable=True, why=main.why or copy.why)


@dataclass(frozen=True, slots=True)
class _Text:
    """One of the two files: its value if it loads, and why not where it is JSON."""

    value: Any = None
    loads: bool = False
    is_empty: bool = False
    is_too_large: bool = False
    why: str = ""


def _read(store: Store, path: Path, behaviour: Behaviour | None) -> _Text:
    text = store.cache.read(path, 0, MAX_SIZE_BYTES + 1) if path.is_file() else b""
    if not text:
        return _Text(is_empty=True)
    try:
        parsed = parse_config(text)
    except JsonTooLargeError:
        return _Text(is_too_large=True)  # a broker may well read it
    except JsonError:
        return _Text()
    if behaviour is None:
        return _Text(parsed.tree, loads=True)
    refusals = parsed.refusals(f"{paths.CONFIG}/{path.name.removesuffix(paths.BAK_SUFFIX)}")
    why = refusals.by(behaviour.config_members, behaviour.config_reader, is_blank=text.isspace())
    return _Text(why=why) if why else _Text(parsed.tree, loads=True)


def is_full_folder(store: Store, name: str) -> bool:
    """Whether a folder stands for a config file that a broker cannot delete."""
    path = store.root / paths.CONFIG / name
    try:
        return path.is_dir() and not path.is_symlink() and bool(names_of(path))
    except OSError:  # then a broker cannot look into it either
        return True
