"""What recover leaves with its options, read by real store code as a consumer reads it: every other message once, at its old number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.recovery.keep_options import KeepOptions
from store_core.recovery.recover import Recovery
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.broker.test_mended import assert_served, opened
from tests.conftest import DamagedStore, GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import Harm, Opener, apply_to, harm, is_queued, mended, places

SettingsOf = Callable[[str], Path]
RELEASES: Final = (("4.9.7", "load-497"), ("5.3.3", "load-533"))


def assert_consumed(
    open_store: OpenStore, version: str, base: str, root: Path, recovery: Recovery, found: Harm, *, skipped: bool
) -> None:
    """A consumer that starts at each harmed queue's begin gets each message that is left once; the log is as it was.

    ``skipped``: nothing comes in the place of a lost message, but at a queue's end.
    """
    queues = recovery.after.queues
    lost = places(recovery.lost)
    harmed = sorted({(topic, queue_id) for topic, queue_id, _ in found.lost_places})
    asked = [(t, q, n) for t, q in harmed for n in range(queues[t][q].min_offset, queues[t][q].max_offset)]
    told = open_store(
        version,
        root,
        stores.properties_text(base),
        start_ms=5000,
        stop=False,
        requests=[oracle.pull(t, q, n, 8) for t, q, n in asked],
    )
    answers = dict(zip(asked, told["answers"], strict=True))
    readable = [m for m in stores.truth(base)["messages"] if m in found.intact or m in found.changed or not lost]
    for topic, queue_id in harmed:
        at, end = queues[topic][queue_id].min_offset, queues[topic][queue_id].max_offset
        got: list[dict[str, Any]] = []
        while at < end:
            answer = answers[topic, queue_id, at]
            # Behind its end come delayed ones, once it is time.
            got += [message for message in answer["messages"] if message["queueOffset"] < end]
            assert answer["nextBeginOffset"] > at, answer
            at = answer["nextBeginOffset"]
        numbers = [m["queueOffset"] for m in got]
        assert numbers == sorted(set(numbers))
        mine = {
            m["queueOffset"]: m for m in readable if is_queued(m) and (m["topic"], m["queueId"]) == (topic, queue_id)
        }
        gone = {n for t, q, n in lost if (t, q) == (topic, queue_id)}
        kept = [m for m in got if m["queueOffset"] not in gone]
        assert [(m["queueOffset"], m["msgId"], m["bodySha256"]) for m in kept] == [
            (m["queueOffset"], m["msgId"], m["bodySha256"]) for m in mine.values()
        ]
        stood_for = [m["queueOffset"] for m in got if m["queueOffset"] in gone]
        assert stood_for == [n for n in sorted(gone) if not skipped or n == end - 1]


@pytest.mark.parametrize("case", ["flip-body-mid", "zero-page-mid", "log-missing-mid"])
@pytest.mark.parametrize(("version", "base"), RELEASES)
def test_skipped_messages_are_passed_over(
    version: str,
    base: str,
    case: str,
    golden: GoldenStore,
    damaged: DamagedStore,
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    root, config = damaged(base, case, "crash"), settings_of(base)
    recovery, found = mended(golden(base), root, base, Opener(config, version), KeepOptions("skip"))
    told = opened(open_store, version, base, root, config, recovery.after.as_json())
    assert_served(told, found.intact)
    assert_consumed(open_store, version, base, root, recovery, found, skipped=True)


@pytest.mark.parametrize(("version", "base"), RELEASES)
def test_a_siblings_records_and_repaired_heads_are_served(
    version: str,
    base: str,
    golden: GoldenStore,
    damaged: DamagedStore,
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    """A missing segment comes from a copy, wiped sizes and magics from what is left: every message is as it was."""
    root, config = damaged(base, "log-missing-mid", "crash"), settings_of(base)
    store, messages = Damageable(root, stores.truth(base)), stores.truth(base)["messages"]
    wiped = [n for n, m in enumerate(messages) if m["bodyLength"] and 100 < n < 110]
    for number in wiped:
        store.zero(store.message(number)["phyOffset"], 8)
    found = harm(golden(base), root, base)
    sibling = damaged(base, "log-missing-mid", "crash")  # has all but the same heads, once the segment is back
    lost = next(
        path for path in (golden(base) / "commitlog").iterdir() if not (sibling / "commitlog" / path.name).exists()
    )
    (sibling / "commitlog" / lost.name).write_bytes(lost.read_bytes())
    for number in wiped:
        Damageable(sibling, stores.truth(base)).zero(store.message(number)["phyOffset"], 8)
    recovery = Opener(config, version).recover(root, options=KeepOptions(siblings=(sibling,)))
    assert (recovery.lost, len(recovery.repaired)) == ((), len(wiped))
    apply_to(recovery, root)
    told = opened(open_store, version, base, root, config, recovery.after.as_json())
    assert_served(told, messages)
    assert_consumed(open_store, version, base, root, recovery, found, skipped=False)
