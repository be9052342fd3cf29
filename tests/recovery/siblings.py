"""Recovering with other copies of the log, as tests ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store_core.recovery.apply.undo import undo
from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.recover import Recovery
from tests import stores
from tests.conftest import differences
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, assert_kept


def with_siblings(*roots: Path, **more: Any) -> KeepOptions:
    return KeepOptions(siblings=roots, **more)


def assert_as_it_was(opener: Opener, root: Path, golden: Path, base: str, options: KeepOptions) -> Recovery:
    """Recovered, with nothing lost: every record of the truth at its place, nothing left to do; and undone again."""
    before = stores.snapshot(root)
    recovery = opener.recover(root, options=options)
    assert differences(before, stores.snapshot(root)) == []
    assert (recovery.lost, recovery.given_up) == ((), ())
    applied = apply_to(recovery, root)
    assert applied is not None
    assert opener.recover(root, options=options).plan.steps == ()
    assert opener.recover(root).plan.steps == ()
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []
    after = opener.predict(root)
    assert after == recovery.after.as_json()
    assert (after["starts"], after["lost_messages"], after["ghosts"]) == (True, 0, [])
    assert_kept(golden, root, base, stores.truth(base)["messages"])
    undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []
    return recovery


def taken_records(recovery: Recovery) -> int:
    return sum(int(one["records"]) for one in recovery.siblings)


def part(store: Damageable, record: int) -> None:
    """From a record on another history: written at other times."""
    for number, message in enumerate(store.truth["messages"]):
        if number >= record:
            store.set_field(number, "store_timestamp_ms", message["storeTimestamp"] + 60_000)
