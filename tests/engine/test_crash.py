"""Killed at every primitive, and cut off from power there: recover finds the message whole or not at all, and nothing else
is lost; what was answered for with --flush sync is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from store_core.engine.live_store import LiveStore, WriteOptions, open_for_writing
from store_core.engine.message import NewMessage
from store_core.engine.progress import commit_offset
from store_core.engine.put import put, put_all
from store_core.engine.transactions import commit
from store_core.layout import paths
from store_core.read.progress import read_progress
from store_core.recovery.apply.apply import apply
from store_core.recovery.recover import recover
from store_core.scan.log import scan_log
from tests import stores
from tests.conftest import GoldenStore
from tests.engine.writing import Written
from tests.recording import DATA, NAMES, Killed, Primitive, RecordingOps, replay, unsynced

TOPICS = {
    "load-533": "Calm_orders",
    "clean-540": "Port_orders",
    "bcq-533": "Bcq_inner",
    "cqext-497": "Ext_orders",
    "propcrc-533": "Crc_orders",
    "lmq-533": "Lmq_plain",
}
Act = Callable[[LiveStore, str], object]


def one(live: LiveStore, topic: str) -> object:
    return put(live, NewMessage(topic, b"new", 0, {"KEYS": "a b", "TAGS": "T"}))


def delayed(live: LiveStore, topic: str) -> object:
    return put(live, NewMessage(topic, b"new", 0, {"DELAY": "2"}))


def to_a_new_topic(live: LiveStore, topic: str) -> object:
    return put(live, NewMessage(f"{topic}_2", b"new", 1), create_topic=True)


def transaction(live: LiveStore, topic: str) -> object:
    half = put(live, NewMessage(topic, b"new", 0), half=True).stored
    assert half is not None
    return commit(live, half.phy_offset)


def batch(live: LiveStore, topic: str) -> object:
    return put_all(live, [NewMessage(topic, b"new" * 400, n % 2, {"KEYS": f"a{n}"}) for n in range(6)])


def with_a_checkpoint_between(live: LiveStore, topic: str) -> object:
    put(live, NewMessage(topic, b"new", 0))
    live.save_checkpoint()
    return put(live, NewMessage(topic, b"newer", 1))


@dataclass
class Case:
    """A store just before an act, and what the act did to it."""

    name: str
    folder: Path
    act: Act
    primitives: list[Primitive] = field(default_factory=list)
    answered: int = 0  # how many primitives had happened when the answer was given
    before: int = 0
    acted: int = 0

    @property
    def written(self) -> Written:
        return Written.of(self.name, self.folder / "base" / "store")

    def fresh(self) -> Written:
        replay([], self.folder / "start", self.folder / "base")
        return self.written

    def record(self) -> None:
        written = self.fresh()
        self.before = count(written)
        ops = RecordingOps(self.folder / "base")
        with open_for_writing(written.settings, WriteOptions(ops=ops)) as live:
            self.act(live, TOPICS[self.name])
            self.answered = len(ops.primitives)
        ops.close()
        self.primitives = ops.primitives
        self.acted = count(written) - self.before
        assert written.problems() == []

    def assert_recovers(self, what: object, *, at_least: int = 0) -> None:
        """Nothing, or the first of the act's records, or more of them; never less than the answer promised."""
        written = self.written
        if (written.root / paths.ABORT).exists():
            with written.store() as store:
                plan = recover(store).plan
            apply(plan, written.root)
        assert not (written.root / paths.ABORT).exists()
        assert written.problems() == [], what
        assert self.before + at_least <= count(written) <= self.before + self.acted, what


def count(written: Written) -> int:
    with written.store() as store:
        return sum(int((table.kind == 0).sum()) for table in scan_log(store))


@pytest.fixture
def case_of(golden: GoldenStore, tmp_path: Path) -> Callable[[str, Act], Case]:
    def made(name: str, act: Act) -> Case:
        (tmp_path / "start").mkdir()
        stores.copy_store(golden(name), tmp_path / "start" / "store")
        return Case(name, tmp_path, act)

    return made


def fill(written: Written, topic: str) -> None:
    """So far that the next message needs a new segment, a new queue file and a new index file."""
    with written.live(flush="async") as live:
        while live.next_queue_offset(topic, 0) % 200:
            assert put(live, NewMessage(topic, b"", 0)).stored is not None
        while not _index_is_full(live):
            assert put(live, NewMessage(topic.replace("_plain", "_parent"), b"", 0)).stored is not None
        last = put(live, NewMessage(topic.replace("_plain", "_parent"), b"", 0)).stored
        assert last is not None
        left = live.segment_size_bytes - (last.phy_offset + last.size_bytes) % live.segment_size_bytes
        rest = NewMessage(topic.replace("_plain", "_parent"), b"x" * (left - 8 - last.size_bytes), 0)
        assert put(live, rest).stored is not None


def _index_is_full(live: LiveStore) -> bool:
    index = live._index  # a broker's own file states are not part of the interface
    assert index is not None
    return index._header.index_count >= 1998


ACTS = [
    ("propcrc-533", one),
    ("cqext-497", one),
    ("bcq-533", one),
    ("clean-540", delayed),
    ("lmq-533", to_a_new_topic),
    ("lmq-533", transaction),
    ("load-533", batch),
    ("clean-540", with_a_checkpoint_between),
]


def crashes(case: Case, *, power: bool = False) -> Iterator[int]:
    """Each state that a kill, or a power cut, can leave is made once: gives how many records must be in it."""
    seen = set()
    for n in range(len(case.primitives) + 1):
        data, names = unsynced(case.primitives[:n]) if power else (set[int](), set[int]())
        for skip in (data | names, data):
            left = tuple(at for at in range(n) if at not in skip and case.primitives[at].name in DATA | NAMES)
            promised = case.acted if n >= case.answered else 0
            if (left, promised) not in seen:
                seen.add((left, promised))
                replay(case.primitives[:n], case.folder / "start", case.folder / "base", skip)
                yield promised


@pytest.mark.product(4)
@pytest.mark.parametrize(("name", "act"), [*ACTS[:3], *ACTS[4:]], ids=lambda value: getattr(value, "__name__", value))
def test_killed_at_every_primitive(case_of: Callable[[str, Act], Case], name: str, act: Act) -> None:
    case = case_of(name, act)
    case.record()
    for number, promised in enumerate(crashes(case)):
        case.assert_recovers(number, at_least=promised)


@pytest.mark.product(3)
@pytest.mark.parametrize(
    ("name", "act"), [ACTS[0], ACTS[1], ACTS[3], *ACTS[6:]], ids=lambda value: getattr(value, "__name__", value)
)
def test_a_power_cut_at_every_primitive(case_of: Callable[[str, Act], Case], name: str, act: Act) -> None:
    """What was not synced is gone; or only its bytes are."""
    case = case_of(name, act)
    case.record()
    for number, promised in enumerate(crashes(case, power=True)):
        case.assert_recovers(number, at_least=promised)


@pytest.mark.product(power=(True,))
@pytest.mark.parametrize("power", [False, True])
def test_killed_while_segment_queue_and_index_go_on_to_new_files(
    case_of: Callable[[str, Act], Case], power: bool
) -> None:
    case = case_of("lmq-533", one)
    fill(Written.of("lmq-533", case.folder / "start" / "store"), "Lmq_plain")
    case.record()
    made = [p.paths[0] for p in case.primitives if p.name == "create"]
    assert [path.split("/")[1] for path in made] == ["abort", "commitlog", "consumequeue", "index"]
    for number, promised in enumerate(crashes(case, power=power)):
        case.assert_recovers(number, at_least=promised)


@pytest.mark.parametrize("torn", [5, 60, 100])
def test_half_a_record_is_no_record(case_of: Callable[[str, Act], Case], torn: int) -> None:
    case = case_of("propcrc-533", one)
    case.record()
    at = next(n for n, p in enumerate(case.primitives) if p.name == "write" and "/commitlog/" in p.paths[0])
    whole = case.primitives[at]
    part = Primitive("write", whole.paths, (whole.arguments[0], whole.arguments[1][:torn]), whole.file)
    replay([*case.primitives[:at], part], case.folder / "start", case.folder / "base")
    case.assert_recovers(torn)
    assert count(case.written) == case.before


def test_a_batch_that_is_torn_anywhere_leaves_its_first_records(case_of: Callable[[str, Act], Case]) -> None:
    """A record whose last properties alone are missing is taken for whole, as no checksum covers them."""
    case = case_of("load-533", batch)
    case.record()
    at = next(n for n, p in enumerate(case.primitives) if p.name == "write" and "/commitlog/" in p.paths[0])
    whole = case.primitives[at]
    size = len(whole.arguments[1])
    for torn in range(0, size, 512):
        part = Primitive("write", whole.paths, (whole.arguments[0], whole.arguments[1][:torn]), whole.file)
        replay([*case.primitives[:at], part], case.folder / "start", case.folder / "base")
        case.assert_recovers(torn)
        whole_records, rest = divmod(torn, size // 6)
        almost_whole = rest > size // 6 - 100
        assert count(case.written) - case.before - whole_records in ((0, 1) if almost_whole else (0,))


def test_the_log_is_synced_before_any_queue_is_written(case_of: Callable[[str, Act], Case]) -> None:
    case = case_of("propcrc-533", one)
    case.record()
    order = [(p.name, p.paths[0].removeprefix("store/").split("/")[0]) for p in case.primitives]
    places = [
        order.index(step) for step in (("sync_file", "abort"), ("write", "commitlog"), ("sync_file", "commitlog"))
    ]
    places += [order.index(("write", tree)) for tree in ("consumequeue", "index", "checkpoint")]
    places += [order.index(("sync_file", "checkpoint")), order.index(("unlink", "abort"))]
    assert places == sorted(places)


def test_async_waits_for_no_disk_and_keeps_the_order(case_of: Callable[[str, Act], Case]) -> None:
    case = case_of("propcrc-533", one)
    written = case.fresh()
    ops = RecordingOps(case.folder / "base")
    with open_for_writing(written.settings, WriteOptions(flush="async", ops=ops)) as live:
        one(live, TOPICS[case.name])
        assert not [p for p in ops.primitives if p.name.startswith("sync")]
    ops.close()
    steps = [(p.name, p.paths[0].split("/")[1]) for p in ops.primitives if p.paths[0] != "store"]
    writes = [n for n, (name, tree) in enumerate(steps) if name == "write" and tree != "checkpoint"]
    syncs = [n for n, (name, tree) in enumerate(steps) if name == "sync_file" and tree != "checkpoint"]
    saved, removed = steps.index(("write", "checkpoint")), steps.index(("unlink", "abort"))
    assert max(writes) < min(syncs) <= max(syncs) < saved < removed  # the checkpoint names only what is on the disk
    trees = [tree for name, tree in steps if name == "write"]
    assert list(dict.fromkeys(trees)) == ["abort", "commitlog", "consumequeue", "index", "checkpoint"]


def test_killed_inside_the_process_too(case_of: Callable[[str, Act], Case]) -> None:
    """As replayed above, with the process's own end in between: nothing is written behind the kill."""
    case = case_of("lmq-533", one)
    case.record()
    for n in range(0, len(case.primitives), 4):
        written = case.fresh()
        ops = RecordingOps(case.folder / "base", kill_after=n, torn=True)
        with pytest.raises(Killed), open_for_writing(written.settings, WriteOptions(ops=ops)) as live:
            one(live, TOPICS[case.name])
        ops.close()
        assert len(ops.primitives) == n
        case.assert_recovers(n)


def test_progress_is_old_or_new_at_every_primitive(case_of: Callable[[str, Act], Case]) -> None:
    case = case_of("load-533", lambda live, topic: commit_offset(live, "Calm_g1", topic, 0, 77))
    case.record()
    old = read_progress(case.folder / "start" / "store").offset_of("Calm_g1", "Calm_orders", 0)
    seen = set()
    found = old
    for power in (False, True):
        for _ in crashes(case, power=power):
            table = read_progress(case.written.root)
            assert not table.findings
            found = table.offset_of("Calm_g1", "Calm_orders", 0)
            seen.add(found)
        assert found == 77
    assert seen == {old, 77}
