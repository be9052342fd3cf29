"""Load a JSON config file as a broker does: the file, its ``.bak``, nothing, or a failed load (behaviour 1.1)."""

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
    """The value that a broker loads from a JSON config file. ``unusable``: the broker fails to load it.

    ``why``: the error in a file that is JSON; "" if the file is not JSON or has no error.
    """

    value: Any = None
    damaged_main: bool = False
    unusable: bool = False
    why: str = field(default="", compare=False)


def read_config(store: Store, name: str, behaviour: Behaviour | None = None) -> ConfigFile:
    """Read a config file in a broker's order.

    * The main file.
    * Its ``.bak`` if the main file is missing, empty or damaged.
    * No value if both are missing or empty, or if a file is larger than this module reads: a broker may load that.

    A folder counts as a file that a broker fails to read.

    Args:
        behaviour: the release that loads it, which may refuse values of a wrong type; None only checks that it is JSON.
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
    """One of the two files: its value if it loads, else the reason if it is JSON."""

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
    """Return True if a config file's name is a folder with contents, which a broker cannot delete."""
    path = store.root / paths.CONFIG / name
    try:
        return path.is_dir() and not path.is_symlink() and bool(names_of(path))
    except OSError:  # then a broker cannot look into it either
        return True
