"""Apache RocketMQ broker stores as a library: read, check, mend, write, export.

The names below are the public interface (docs/library.md); everything else may change from one release to the next.
A name is imported when it is first asked for, so that a light command loads no more than it needs.

The rooms, from the bottom up (imports go one way, see docs/architecture.md):
layout, codec, storage, kernel, scan, derive, read, check, broker, recovery, engine, export.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store_core.check.store import check_store as check_store
    from store_core.engine.message import NewMessage as NewMessage
    from store_core.engine.store import MessageStore as MessageStore
    from store_core.errors import StoreError as StoreError
    from store_core.export.export import export_stores as export_stores
    from store_core.export.runners.local import LocalRunner as LocalRunner
    from store_core.read.pull import open_queue as open_queue
    from store_core.read.pull import pull as pull
    from store_core.read.query import KeyQuery as KeyQuery
    from store_core.read.query import query_key as query_key
    from store_core.recovery.apply.apply import apply as apply
    from store_core.recovery.apply.undo import undo as undo
    from store_core.recovery.recover import recover as recover
    from store_core.scan.log import scan_log as scan_log
    from store_core.storage.store import Store as Store

_MODULES = {
    "KeyQuery": "read.query",
    "LocalRunner": "export.runners.local",
    "MessageStore": "engine.store",
    "NewMessage": "engine.message",
    "Store": "storage.store",
    "StoreError": "errors",
    "apply": "recovery.apply.apply",
    "check_store": "check.store",
    "export_stores": "export.export",
    "open_queue": "read.pull",
    "pull": "read.pull",
    "query_key": "read.query",
    "recover": "recovery.recover",
    "scan_log": "scan.log",
    "undo": "recovery.apply.undo",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name. Raises AttributeError for any other."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
