"""Commit or roll back a half message: the second half of a transaction (store behaviour 4.8; store format 10.5)."""

from __future__ import annotations

from typing import Final

from store_core.codec.properties import REAL_QID, REAL_TOPIC, TAGS
from store_core.codec.record import Message
from store_core.engine import properties as names
from store_core.engine.checks import RefusedError, checked_size
from store_core.engine.live_store import LiveStore
from store_core.engine.message import PutResult
from store_core.engine.put import answer
from store_core.engine.record import NewRecord
from store_core.errors import UsageError
from store_core.layout import paths, record
from store_core.read.pull import open_queue
from store_core.read.queue import Queue
from store_core.read.records import read_message
from store_core.read.transactions import op_record
from store_core.storage.store import Store

_OP_TAG: Final = "d"
_OP_SEPARATOR: Final = ","


def commit(live: LiveStore, half_phy_offset: int) -> PutResult:
    """Deliver a half message: a record in its real queue, then the op message. Return the answer for the record.

    Raises UsageError where no open half message starts at the offset.
    """
    with live.lock:  # no other thread may end the half meanwhile
        half = open_half(live, half_phy_offset)
        new = _committed(live, half)
        try:
            stored = live.append(new, checked_size(live, new))
        except RefusedError as refused:
            return PutResult(refused.status, new.topic, new.queue_id, reason=refused.reason)
        live.append(_op(live, half))
    return answer(stored)


def rollback(live: LiveStore, half_phy_offset: int) -> PutResult:
    """Roll a half message back by an op message alone; return the answer for that. Raises UsageError as ``commit``."""
    with live.lock:
        return answer(live.append(_op(live, open_half(live, half_phy_offset))))


def open_half(live: LiveStore, phy_offset: int) -> Message:
    """Return the half message at an offset. Raises UsageError where there is none, or where it is resolved already."""
    with live.listed() as store:
        return _open_half(store, phy_offset)


def _open_half(store: Store, phy_offset: int) -> Message:
    half = read_message(store.log, phy_offset)
    if half is None or half.topic != paths.HALF_TOPIC or half.own_phy_offset != phy_offset:
        raise UsageError(
            f"no half message starts at {phy_offset}", to_do=f"`rmqctl log --topic {paths.HALF_TOPIC}` lists them"
        )
    if not half.properties.get(REAL_TOPIC) or not half.properties.get(REAL_QID, "").isdecimal():
        raise UsageError(f"the half message at {phy_offset} does not say where it belongs", to_do="nothing can be done")
    if _is_resolved(store, half):
        raise UsageError(
            f"the half message at {phy_offset} is committed or rolled back already", to_do="there is nothing to do"
        )
    return half


def _is_resolved(store: Store, half: Message) -> bool:
    """Return True if an op message after the half names its queue offset."""
    ops = open_queue(store, paths.OP_TOPIC, half.queue_id)
    return isinstance(ops, Queue) and op_record(ops, half) is not None


def _committed(live: LiveStore, half: Message) -> NewRecord:
    """Return the committed record. Up to 5.3 it keeps the half's REAL_TOPIC and REAL_QID, as a broker clears them too late (4.2)."""
    hidden = () if live.rules.commit_tells_real_topic else (REAL_TOPIC, REAL_QID)
    properties = {name: value for name, value in half.properties.items() if name not in hidden}
    return NewRecord(
        topic=half.properties[REAL_TOPIC],
        queue_id=int(half.properties[REAL_QID]),
        body=half.body,
        properties=properties,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=half.raw_born_host,
        flag=half.flag,
        sys_flag=half.sys_flag & ~record.TRANSACTION_MASK | record.TRANSACTION_COMMIT,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=half.phy_offset,
    )


def _op(live: LiveStore, half: Message) -> NewRecord:
    number = f"{half.queue_offset}{_OP_SEPARATOR if live.rules.op_is_list else ''}"
    return NewRecord(
        topic=paths.OP_TOPIC,
        queue_id=half.queue_id,
        body=number.encode(),
        properties={names.WAIT: "true", TAGS: _OP_TAG},
        born_timestamp_ms=live.now_ms(),
        born_host=live.store_host,
        is_ordered=True,
    )
