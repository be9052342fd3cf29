"""recover on every recorded damage: what is readable stays where it was, what is lost is told, undo gives all back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from store_core.codec.hosts import host_bytes
from store_core.codec.record import encode_record
from store_core.errors import FailedError, PlanOutOfDateError
from store_core.layout import paths
from store_core.recovery.apply.apply import apply
from store_core.recovery.apply.undo import undo
from tests import stores
from tests.beside import locked
from tests.conftest import DamagedStore, GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.recovery.recovering import VERSIONS, Opener, after_repairs, apply_to, assert_kept, harm, log_bytes, places
from tests.surgery import Exit

SettingsOf = Callable[[str], Path]
OpenerOf = Callable[[str], Opener]

# What a check still warns of afterwards, and why recover leaves it.
LEFT: Final = {
    "index-stray": {"I006"},  # a file that every broker ignores is somebody's, not the store's
    "mid-none-type": {"P002"},  # the case made a topic of its own; rebuild topics is for that
    "last-none-type": {"P002"},
    "log-missing-first": {"L026"},  # nothing can bring it back, and the records are too young to have expired
    "storetime-zero-first": {"L019"},  # the record is readable and stays as it is
    "first-one-rollback-ts0": {"L019"},
}
# The case itself put records with the lost ones' numbers there.
NUMBERS_STAND: Final = tuple(
    f"{where}-{how}"
    for where in ("mid", "last")
    for how in ("tombstones-none", "tombstones-none-rebuild", "dead-small")
)
# Queue entries behind the log's end may be all that is left of messages: these three are told, though invented.
INVENTED: Final = "cq-beyond-log"
# The lost messages are told as expired or missing, not among those that are lost.
EXPIRED: Final = "log-missing-first"
# Nothing at all is left to go by.
NO_LOG: Final = "log-removed"
SKIPPED: Final = (NO_LOG,)
BOTH_EXITS: Final = (
    "blank-mid-broken",
    "cq-removed-flip-mid",
    "flip-body-mid",
    "ghost-tail",
    "log-full-then-old-file",
    "log-last-empty",
    "log-mid-short",
    "log-missing-mid",
    "magic-first-mid",
    "torn-tail",
    "zero-page-mid",
)
CASES: Final = [(base, case, "crash") for base in VERSIONS for case in stores.cases(base) if case not in SKIPPED] + [
    (base, case, "clean") for base in VERSIONS for case in BOTH_EXITS
]


@pytest.fixture
def opener_of(settings_of: SettingsOf) -> OpenerOf:
    return lambda base: Opener(settings_of(base), VERSIONS.get(base) or stores.truth(base)["written_by"])


@pytest.mark.product
@pytest.mark.parametrize(("base", "case", "exit"), CASES, ids=["-".join(case) for case in CASES])
def test_everything_readable_is_kept(
    base: str, case: str, exit: Exit, golden: GoldenStore, damaged: DamagedStore, opener_of: OpenerOf
) -> None:
    opener, root = opener_of(base), damaged(base, case, exit)
    before = stores.snapshot(root)
    found = harm(golden(base), root, base)
    recovery = opener.recover(root)
    found = after_repairs(found, recovery)
    assert differences(before, stores.snapshot(root)) == []  # a dry run writes nothing
    told = places(recovery.lost)
    if case == INVENTED:
        assert len(told) == 3
    elif case in NUMBERS_STAND:
        assert told == set()
    elif case != EXPIRED:
        assert told == found.lost_places
    assert not recovery.given_up

    applied = apply_to(recovery, root)
    assert opener.recover(root).plan.steps == ()
    assert {f.code for f in opener.check(root) if f.severity != "info"} == LEFT.get(case, set())
    after = opener.predict(root)
    assert after == recovery.after.as_json()
    assert (after["starts"], after["lost_messages"]) == (True, 0)
    assert (after["ghosts"], after["delivered_early"], after["deleted_commitlog_files"]) == ([], [], [])
    assert_kept(golden(base), root, base, found.intact)

    if applied is not None:
        undo(root, applied.undo_id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(".rmqctl")}
    assert differences(before, now) == []


@pytest.mark.parametrize("base", VERSIONS)
def test_nothing_is_changed_where_no_log_is_left(base: str, damaged: DamagedStore, opener_of: OpenerOf) -> None:
    recovery = opener_of(base).recover(damaged(base, NO_LOG, "crash"))
    assert recovery.plan.steps == ()
    assert "S007" in {f.code for f in recovery.findings}


@pytest.mark.parametrize("base", VERSIONS)
def test_a_wrong_own_offset_is_set_right(
    base: str, golden: GoldenStore, damaged: DamagedStore, opener_of: OpenerOf
) -> None:
    root = damaged(base, "flip-phyoffset-last", "clean")
    apply_to(opener_of(base).recover(root), root)
    assert_kept(golden(base), root, base, stores.truth(base)["messages"])


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_a_sane_store_needs_nothing(
    name: str, golden: GoldenStore, read_only: Callable[[Path], Path], opener_of: OpenerOf
) -> None:
    root = read_only(golden(name))
    recovery = opener_of(name).recover(root)
    steps = {(str(step.op), step.path.split("/")[0]) for step in recovery.plan.steps}
    # After a crash there is the empty segment behind the last, abort, and at times a checkpoint that was not written again.
    allowed = {("remove file", "commitlog"), ("remove file", "abort"), ("replace file", "checkpoint")}
    if name == "crash-497":  # killed before the delay service had written where it was
        allowed.add(("create file", "config"))
    assert steps <= (allowed if name in stores.KILLED else set())
    assert recovery.lost == ()
    assert recovery.after.lost_messages == 0


FILLERS: Final = ("end-", "first-", "last-", "mid-", "min-", "v2-", "whole-")  # closed holes, which keep is about
DISPATCHED_ANEW: Final = ("cq-queue-missing", "cq-removed", "cq-removed-flip-mid")
BROKER_CASES: Final = [
    (base, case, exit)
    for base in VERSIONS
    for case in stores.cases(base)
    for exit in ("crash", "clean")
    if f"{case}/{exit}" in stores.outcomes(base)
    and not case.startswith(FILLERS)
    and (exit == "crash" or case in BOTH_EXITS)
]


@pytest.mark.product(13)
@pytest.mark.leaves_damage("a broker passes over damage that it does not scan, and leaves progress behind the end")
@pytest.mark.parametrize(("base", "case", "exit"), BROKER_CASES, ids=["-".join(case) for case in BROKER_CASES])
def test_policy_broker_ends_where_the_broker_does(
    base: str, case: str, exit: Exit, damaged: DamagedStore, opener_of: OpenerOf
) -> None:
    opener, root = opener_of(base), damaged(base, case, exit)
    outcome = stores.outcomes(base)[f"{case}/{exit}"]
    if not (outcome["load"]["ok"] and outcome["afterStart"]["returned"]):
        with pytest.raises(FailedError, match="would not start"):
            opener.recover(root, "broker")
        return
    apply_to(opener.recover(root, "broker"), root)
    after, real = opener.predict(root), outcome["afterStart"]
    # The min of a queue that was dispatched anew begins behind its fillers, until the next start, which is after ours.
    from_file = case not in DISPATCHED_ANEW
    spans = {
        (topic, int(queue_id)): (span["min_offset"] * from_file, span["max_offset"])
        for topic, queues in after["queues"].items()
        for queue_id, span in queues.items()
    }
    recorded = {(q["topic"], q["queueId"]): (q["min"] * from_file, q["max"]) for q in real["queues"] if q["max"] > 0}
    assert spans == recorded
    assert (after["starts"], after["max_phy_offset"]) == (True, real["maxPhyOffset"])
    assert after["deleted_commitlog_files"] == []
    assert opener.recover(root, "broker").plan.steps == ()


def test_policy_strict_tells_the_same_plan(damaged: DamagedStore, opener_of: OpenerOf) -> None:
    root = damaged("load-533", "flip-body-mid", "crash")
    keep, strict = opener_of("load-533").recover(root), opener_of("load-533").recover(root, "strict")
    assert strict.plan.policy == "strict"
    assert (strict.plan.steps, strict.lost) == (keep.plan.steps, keep.lost)


def test_a_healthy_store_after_a_crash_only_loses_abort(store_copy: StoreCopy, opener_of: OpenerOf) -> None:
    root = store_copy("load-533", "crash")
    recovery = opener_of("load-533").recover(root)
    assert [(str(step.op), step.path) for step in recovery.plan.steps] == [("remove file", "abort")]


def test_abort_as_a_link_that_leads_nowhere_is_none(store_copy: StoreCopy, opener_of: OpenerOf) -> None:
    """Java's ``File.exists`` follows links: a broker takes the last stop for a clean one."""
    root = store_copy("clean-533")
    (root / "abort").symlink_to(root / "unmounted" / "abort")
    recovery = opener_of("clean-533").recover(root)
    assert recovery.plan.steps == ()
    assert [(found.code, found.file) for found in opener_of("clean-533").check(root)] == [("S008", "abort")]


def test_two_small_holes_beside_one_record_are_closed_as_one(
    damageable: Callable[..., Damageable], opener_of: OpenerOf
) -> None:
    """Neither has room for a record, so both would take the readable one between them: it is given up, once, and said."""
    store = damageable("load-533")
    number = next(n for n, m in enumerate(store.truth["messages"]) if n > 900 and m["storeSize"] > 320)
    message = store.message(number)
    at, size = message["phyOffset"], message["storeSize"]
    host = host_bytes("127.0.0.1:1")

    def record(body: bytes) -> bytes:
        return encode_record(
            topic=message["topic"],
            body=body,
            properties={},
            queue_id=message["queueId"],
            queue_offset=message["queueOffset"],
            phy_offset=at + 50,
            born_timestamp_ms=1,
            born_host=host,
            store_timestamp_ms=message["storeTimestamp"],
            store_host=host,
        )

    store.write(at, b"\1" * 50 + record(b"x" * (size - 110 - len(record(b"")))) + b"\2" * 60)
    recovery = opener_of("load-533").recover(store.root)
    lost = {(message["topic"], message["queueId"], message["queueOffset"])}
    assert (places(recovery.given_up), places(recovery.lost)) == (lost, lost)
    assert [(s.offset, s.size_bytes) for s in recovery.plan.steps if s.path.startswith("commitlog")] == [
        (at % store.segment_size_bytes, size)
    ]
    apply_to(recovery, store.root)
    assert opener_of("load-533").recover(store.root).plan.steps == ()
    assert {f.code for f in opener_of("load-533").check(store.root)} == {"L016"}


@pytest.mark.parametrize("swapped", [(1, 2), (0, 6, 3), (2, -1)], ids=str)
def test_segments_under_each_others_names_get_their_places_back(
    swapped: tuple[int, ...],
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    """A wrong copy: every record is whole, and says where it belongs. Queues and ids are right again without another word."""
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    files = [store.segments[number] for number in swapped]
    contents = [path.read_bytes() for path in files]
    for path, data in zip(files, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(data)
    before = stores.snapshot(store.root)
    recovery = opener.recover(store.root)
    assert (recovery.lost, recovery.given_up, len(recovery.notes)) == ((), (), 1)
    assert {step.path for step in recovery.plan.steps} == {*(str(p.relative_to(store.root)) for p in files), "abort"}
    applied = apply_to(recovery, store.root)
    assert applied is not None
    assert log_bytes(store.root) == log_bytes(golden("load-533"))
    assert opener.recover(store.root).plan.steps == ()
    assert opener.predict(store.root) == recovery.after.as_json()
    undo(store.root, applied.undo_id, apply=True)
    assert differences(before, stores.snapshot(store.root)) in ([], [".rmqctl"])


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "x"),
        (0, f"{131072 * 3 + 1:020d}"),
        (2, f"{131072 * 2:020d}.bak"),
        (2, f"{131072 * 2}"),
        (3, f"{131072 * 40:020d}"),
        (3, f"{131072 * 3 + 1:020d}"),
        (-1, "last.tmp"),
        (-1, f"{131072 * 9:020d}"),
    ],
    ids=str,
)
def test_a_segment_under_a_wrong_name_gets_its_own_back(
    number: int,
    name: str,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    """Also where a page of it is damaged: what is whole stays."""
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    file = store.segments[number]
    with file.open("r+b") as opened:
        opened.write(bytes(512))
    before, whole = stores.snapshot(store.root), log_bytes(golden("load-533"))
    file.rename(file.with_name(name))
    changed = stores.snapshot(store.root)
    recovery = opener.recover(store.root)
    assert any(name in note for note in recovery.notes)
    assert 1 <= len(recovery.lost_records) <= 3
    applied = apply_to(recovery, store.root)
    assert applied is not None
    mended = log_bytes(store.root)
    start = int(file.name)
    assert [at for at in whole if mended[at] != whole[at]] == [start]
    assert mended[start][8192:] == whole[start][8192:]
    assert file.stat().st_mtime_ns == before[f"commitlog/{file.name}"].modified_ns
    assert opener.recover(store.root).plan.steps == ()
    assert opener.predict(store.root) == recovery.after.as_json()
    undo(store.root, applied.undo_id, apply=True)
    assert differences(changed, stores.snapshot(store.root)) in ([], [".rmqctl"])


def test_a_copy_in_a_segments_place_is_no_second_life_of_its_messages(
    damageable: Callable[..., Damageable], settings_of: Callable[[str], Path]
) -> None:
    """What stood there is lost, and told; no queue gets a message of the original twice."""
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    one, other = store.segments[1:3]
    original = one.read_bytes()
    other.write_bytes(original)
    recovery = opener.recover(store.root)
    lost = {m["phyOffset"] for m in stores.truth("load-533")["messages"] if 2 <= m["phyOffset"] / 131072 < 3}
    assert {record["phy_offset"] for record in recovery.lost_records} == lost
    assert recovery.after.lost_messages == 0
    apply_to(recovery, store.root)
    assert one.read_bytes() == original
    assert {f.code for f in opener.check(store.root)} == {"L016"}


def test_an_earlier_life_of_the_log_is_not_put_behind_its_end(
    damageable: Callable[..., Damageable], settings_of: Callable[[str], Path]
) -> None:
    """No queue points to what a broker once cut off."""
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    old = store.segments[-1].read_bytes()
    store.segments[-1].unlink()
    assert (
        apply_to(opener.recover(store.root), store.root) is not None
    )  # the messages are given up, their entries with them
    store.segments[-1].with_name("old").write_bytes(old)
    recovery = opener.recover(store.root)
    assert recovery.notes == ()
    assert [step.path for step in recovery.plan.steps] == ["commitlog/old"]
    apply_to(recovery, store.root)


@pytest.mark.parametrize("renamed", [True, False])
@pytest.mark.parametrize("more", [b"x", bytes(20), bytes(131072)])
def test_a_segment_that_is_not_there_behind_one_that_is_too_long(
    more: bytes,
    renamed: bool,
    golden: GoldenStore,
    damageable: Callable[..., Damageable],
    settings_of: Callable[[str], Path],
) -> None:
    """The wrong length reaches into its place, and has no say there."""
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    long, gone = store.segments[2:4]
    with long.open("ab") as file:
        file.write(more)
    if renamed:
        gone.rename(gone.with_name("x"))
    else:
        gone.unlink()
    recovery = opener.recover(store.root)
    assert (recovery.after.lost_messages, bool(recovery.lost)) == (0, not renamed)
    apply_to(recovery, store.root)
    whole, now = log_bytes(golden("load-533")), log_bytes(store.root)
    assert [at for at in whole if now[at] != whole[at]] == ([] if renamed else [int(gone.name)])
    assert opener.recover(store.root).plan.steps == ()


def test_the_first_segment_gets_its_place_back_where_the_second_is_gone(
    golden: GoldenStore, damageable: Callable[..., Damageable], settings_of: Callable[[str], Path]
) -> None:
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    first, second, third = store.segments[:3]
    contents = first.read_bytes(), third.read_bytes()
    first.write_bytes(contents[1])
    third.write_bytes(contents[0])
    second.unlink()
    apply_to(opener.recover(store.root), store.root)
    whole, now = log_bytes(golden("load-533")), log_bytes(store.root)
    assert [at for at in whole if now[at] != whole[at]] == [int(second.name)]


def test_swapped_segments_with_damage_get_their_places_back(
    golden: GoldenStore, damageable: Callable[..., Damageable], settings_of: Callable[[str], Path]
) -> None:
    """The damage alone is lost, wherever it is."""
    store, opener = damageable("load-533", "crash"), Opener(settings_of("load-533"), "5.3.3")
    one, other = store.segments[1:3]
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1][:4096] + bytes(512) + contents[1][4608:])
    other.write_bytes(contents[0])
    recovery = opener.recover(store.root)
    assert 1 <= len(recovery.lost_records) <= 3
    assert recovery.after.lost_messages == 0
    apply_to(recovery, store.root)
    assert one.read_bytes() == contents[0]
    assert other.read_bytes()[8192:] == contents[1][8192:]
    assert opener.recover(store.root).plan.steps == ()


@pytest.mark.leaves_damage("the plan is refused")
def test_a_saved_plan_is_refused_where_the_store_has_crashed_since(store_copy: StoreCopy, opener_of: OpenerOf) -> None:
    root = store_copy("load-533")
    queue_file = next((root / paths.CONSUMEQUEUE / "Calm_steps" / "2").iterdir())
    queue_file.write_bytes(b"\1" * 20 + queue_file.read_bytes()[20:])
    plan = opener_of("load-533").recover(root).plan
    (root / paths.ABORT).touch()
    with pytest.raises(PlanOutOfDateError, match="it has come since") as caught:
        apply(plan, root)
    assert caught.value.path == paths.ABORT


def test_a_dry_run_beside_a_broker_tells_no_more_than_check_does(damaged: DamagedStore, opener_of: OpenerOf) -> None:
    """The log's tail is being written, which a broker's lock tells."""
    root = damaged("load-533", "torn-tail", "clean")
    opener = opener_of("load-533")
    assert {f.code for f in opener.recover(root).findings if f.severity == "error"} == {"Q011", "I001"}
    with locked(root):
        found = opener.recover(root).findings
    assert "S002" in {f.code for f in found}
    assert {f.severity for f in found} == {"info"}
