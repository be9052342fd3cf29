"""Setting fields of the checkpoint, as a plan (store format, section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from store_core.errors import UsageError
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT, FILE_SIZE_BYTES
from store_core.read.checkpoint import read_checkpoint
from store_core.recovery.planned import Planned
from store_core.recovery.plans.draft import Draft
from store_core.recovery.prediction.predict import predict, store_after_plan
from store_core.storage.store import Store

_OF_QUEUES: Final = frozenset({"logics_msg_timestamp_ms", "logics_phy_offset"})


def set_checkpoint(store: Store, values: Mapping[str, int]) -> Planned:
    """Work out a checkpoint with these fields set and all others as they stand (0 where there is no file).

    Raises UsageError for an unknown field, a negative value, or one of the queues' time and offset without the other where there is an offset, FailedError where the file cannot be read.
    """
    fields = _fields(store, values)
    data = CHECKPOINT.struct.pack(*fields.values()).ljust(FILE_SIZE_BYTES, b"\0")
    draft = Draft(store.root)
    if store.cache.read(store.root / paths.CHECKPOINT, 0, FILE_SIZE_BYTES + 1) != data:
        draft.write_file(paths.CHECKPOINT, data, why="set by hand")
    with store_after_plan(store, None, files={paths.CHECKPOINT: data}) as shadow:
        after = predict(shadow).outcome
    return Planned(draft.plan("checkpoint"), after, read_checkpoint(store.root).findings)


def _fields(store: Store, values: Mapping[str, int]) -> dict[str, int]:
    standing = read_checkpoint(store.root)
    fields = {name: getattr(standing, name) for name in CHECKPOINT.names}
    for name, value in values.items():
        if name not in fields:
            raise UsageError(f"the checkpoint has no field {name!r}", to_do=f"one of {', '.join(fields)}")
        if not 0 <= value < 1 << 63:
            raise UsageError(f"{value} does not fit {name}", to_do="give a number from 0 on")
        fields[name] = value
    named = _OF_QUEUES.intersection(values)
    if len(named) == 1 and (standing.logics_phy_offset or fields["logics_phy_offset"]):
        other = next(iter(_OF_QUEUES - named))
        raise UsageError(
            f"{next(iter(named))} is set without {other}: brokers of 5.5 go by both",
            to_do=f"set {other} as well",
        )
    return fields
