"""Queue entries that lead into another queue's place do not speak for lost messages that good ones leave no room for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store_core.layout import paths, record
from store_core.recovery import damaged_region as unfounded
from store_core.recovery import lost_from_queues as evidence
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable
from tests.recovery.recovering import Opener, apply_to, assert_kept, harm, places


@pytest.mark.product
@pytest.mark.parametrize("fewest", [2, 1 << 30])
@pytest.mark.parametrize(
    ("base", "topics"),
    [("load-497", ("Soft_orders", "Soft_bills")), ("load-533", ("Calm_orders", "Calm_bills"))],
)
def test_a_queue_with_another_ones_file(
    base: str,
    topics: tuple[str, str],
    fewest: int,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is lost then of either of them has its numbers by what the queue misses, and all that is readable keeps its own."""
    monkeypatch.setattr(evidence, "FEWEST_ROWS", fewest)
    store = damageable(base, "crash")
    for one, other in zip(
        *(sorted((store.root / paths.CONSUMEQUEUE / topic / "0").iterdir()) for topic in topics), strict=False
    ):
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)
    store.lose(len(store.segments) // 2)
    found = harm(golden(base), store.root, base)
    opener = Opener(settings_of(base), stores.truth(base)["written_by"])
    recovery = opener.recover(store.root)
    apply_to(recovery, store.root)
    assert_kept(golden(base), store.root, base, found.intact)
    readable = {(m["topic"], m["queueId"], m["queueOffset"]) for m in found.intact}
    assert not places(recovery.lost) & readable
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.product
@pytest.mark.parametrize("where", ["its files", "its folder"])
@pytest.mark.parametrize(("base", "topic"), [("pool-533", "Pool_audit"), ("crash-540", "Gale_steps")])
def test_entries_of_other_numbers_or_another_queue(
    base: str,
    topic: str,
    where: str,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    """The queue's files under each other's names, or its folder under another queue's: tombstones made of them vouch for nothing."""
    store = damageable(base, "crash")
    folder = store.root / paths.CONSUMEQUEUE / topic / "0"
    if where == "its folder":
        folder.rename(folder.with_name("3"))
    elif len(files := sorted(folder.iterdir())) > 1:
        data = files[0].read_bytes()
        files[0].write_bytes(files[1].read_bytes())
        files[1].write_bytes(data)
    messages = store.truth["messages"]
    for message in messages[len(messages) // 2 : len(messages) * 5 // 8]:
        if message["bodyLength"]:
            store.flip_at(message["phyOffset"] + record.body_at(message["sysFlag"]))
    found = harm(golden(base), store.root, base)
    opener = Opener(settings_of(base), stores.truth(base)["written_by"])
    recovery = opener.recover(store.root)
    apply_to(recovery, store.root)
    assert recovery.repaired == ()
    assert_kept(golden(base), store.root, base, found.intact)
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("topic", "source", "target"), [("Rush_steps", 2, 0), ("Rush_orders", 2, 3), ("Rush_steps", 1, 0)]
)
def test_entries_of_another_queue_behind_those_of_its_own(
    topic: str,
    source: int,
    target: int,
    swapped: bool,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    """Their own place is gone with them; but in the log the records stand in a row as they tell it."""
    store = damageable("crash-533", "crash")
    queues = store.root / paths.CONSUMEQUEUE / topic
    name = paths.segment_name(store.queue_file_size_bytes)
    one, other = (queues / str(number) / name for number in (source, target))
    data = other.read_bytes()
    one.replace(other)
    if swapped:
        one.write_bytes(data)
    recovery = Opener(settings_of("crash-533"), "5.3.3").recover(store.root)
    apply_to(recovery, store.root)
    assert recovery.repaired == ()
    assert recovery.lost == ()
    assert_kept(golden("crash-533"), store.root, "crash-533", stores.truth("crash-533")["messages"])


@pytest.mark.parametrize(
    ("before", "after", "out"),
    [
        (None, 7, []),  # those in front of all good ones
        (4, 7, [0, 4, 7, 9]),
        (4, None, [0, 4]),
        (7, 4, [4]),  # the topic was made again in between
        (None, None, []),
    ],
)
def test_what_neighbours_rule_out(before: int | None, after: int | None, out: list[int]) -> None:
    numbers = np.array([0, 4, 5, 6, 7, 9])
    expected = out if (before, after) != (7, 4) else [4, 5, 6, 7]
    ruled_out = list(unfounded._ruled_out([(numbers * 100, numbers)], before, after))
    assert [place // 100 for part in ruled_out for place in part.tolist()] == expected
