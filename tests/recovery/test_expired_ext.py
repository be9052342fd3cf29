"""recover on stores with ConsumeQueueExt whose first segments have expired: units are counted on from where the standing ones lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from store_core.layout import paths, queue
from store_core.recovery.plans.plan import Op
from tests import stores
from tests.conftest import GoldenStore, set_exit
from tests.recovery.recovering import Opener, SettingsOf, apply_to
from tests.recovery.test_recover_kinds import KEPT_FOR_NO_TIME, expire

NAMES: Final = ("cqext-497", "cqext-533")
QUEUE: Final = "Ext_audit/0"
QUEUE_FILE_SIZE: Final = 50 * queue.ENTRY.size_bytes
EXT_FILE_SIZE: Final = 1024
UNIT: Final = queue.EXT_UNIT
UNITS_PER_FILE: Final = (EXT_FILE_SIZE - queue.EXT_END_BLANK_SIZE_BYTES) // UNIT.size_bytes
TREES: Final = (paths.CONSUMEQUEUE, paths.CONSUMEQUEUE_EXT)

Expired = Callable[[str, int], tuple[Path, Opener]]


@pytest.fixture
def expired(golden: GoldenStore, tmp_path: Path, settings_of: SettingsOf) -> Expired:
    """``expired(name, segments)``: a copy in which every queue has several files of both kinds, without its first segments."""

    def made(name: str, segments: int) -> tuple[Path, Opener]:
        root, config = stores.copy_store(golden(name), tmp_path / name), settings_of(name)
        set_exit(root, "crash")
        sizes = {"mappedFileSizeConsumeQueue": QUEUE_FILE_SIZE, "mappedFileSizeConsumeQueueExt": EXT_FILE_SIZE}
        lines = [line for line in config.read_text().splitlines() if line.partition("=")[0] not in sizes]
        config.write_text(
            "".join(f"{line}\n" for line in [*lines, KEPT_FOR_NO_TIME, *(f"{k}={v}" for k, v in sizes.items())])
        )
        for folder in (root / paths.CONSUMEQUEUE_EXT).glob("*/*"):
            _lay_anew(folder, root / paths.CONSUMEQUEUE / folder.relative_to(root / paths.CONSUMEQUEUE_EXT))
        if segments:
            expire(root, segments)
        return root, Opener(config, stores.truth(name)["written_by"])

    return made


def _lay_anew(ext_folder: Path, folder: Path) -> None:
    """The broker's units and entries in smaller files."""
    data = b"".join(path.read_bytes() for path in sorted(ext_folder.iterdir()))
    units = [data[at : at + UNIT.size_bytes] for at in range(0, len(data.rstrip(b"\0")), UNIT.size_bytes)]
    parts = [units[at : at + UNITS_PER_FILE] for at in range(0, len(units), UNITS_PER_FILE)]
    mark = UNIT.field_struct("size_bytes").pack(queue.EXT_END_OF_FILE)
    marks = [mark] * (len(parts) - 1) + [b""]
    _write(ext_folder, [b"".join(part) + end for part, end in zip(parts, marks, strict=True)], EXT_FILE_SIZE)
    old = b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")
    entries = b""
    for number, (phy_offset, size, address) in enumerate(queue.ENTRY.struct.iter_unpack(_whole(old))):
        assert queue.ext_offset(address) == number * UNIT.size_bytes
        place = number // UNITS_PER_FILE * EXT_FILE_SIZE + number % UNITS_PER_FILE * UNIT.size_bytes
        entries += queue.ENTRY.struct.pack(phy_offset, size, place + queue.EXT_ADDRESS_BASE)
    at = range(0, len(entries), QUEUE_FILE_SIZE)
    _write(folder, [entries[start : start + QUEUE_FILE_SIZE] for start in at], QUEUE_FILE_SIZE)


def _whole(entries: bytes) -> bytes:
    return entries.ljust(-(-len(entries) // queue.ENTRY.size_bytes) * queue.ENTRY.size_bytes, b"\0")


def _write(folder: Path, contents: list[bytes], size: int) -> None:
    for path in folder.iterdir():
        path.unlink()
    for number, data in enumerate(contents):
        (folder / paths.segment_name(number * size)).write_bytes(data.ljust(size, b"\0"))


def _first_unit(root: Path) -> int:
    """Where the unit of the queue's first message in the log lies in its ext files, as its entry says."""
    begin = min(int(path.name) for path in (root / paths.COMMITLOG).iterdir())
    found = (entry for entry in _entries(root) if entry[0] >= begin)
    return queue.ext_offset(next(found)[2])


def _entries(root: Path) -> Iterator[tuple[int, int, int]]:
    for path in sorted((root / paths.CONSUMEQUEUE / QUEUE).iterdir()):
        yield from queue.ENTRY.struct.iter_unpack(path.read_bytes())


def _ext_file(root: Path, place: int) -> Path:
    return root / paths.CONSUMEQUEUE_EXT / QUEUE / paths.segment_name(place // EXT_FILE_SIZE * EXT_FILE_SIZE)


def _flip(path: Path, at: int) -> Path:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    return path


def _gone(path: Path) -> Path:
    path.unlink()
    return path


def _derived_steps(opener: Opener, root: Path) -> list[tuple[Op, str]]:
    steps = opener.recover(root).plan.steps
    return [(step.op, step.path) for step in steps if step.path.startswith(TREES)]


@pytest.mark.product
@pytest.mark.parametrize("segments", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_planned_for_what_is_not_damaged(name: str, segments: int, expired: Expired) -> None:
    root, opener = expired(name, segments)
    assert len(list((root / paths.CONSUMEQUEUE_EXT / QUEUE).iterdir())) > 2
    assert _derived_steps(opener, root) == []
    for file in sorted((root / paths.CONSUMEQUEUE_EXT / QUEUE).iterdir()):  # as a broker deletes them
        if int(file.name) + EXT_FILE_SIZE <= _first_unit(root):
            file.unlink()
            assert _derived_steps(opener, root) == []
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []


LENGTH: Final = UNIT.offset_of("size_bytes")
TAGS: Final = UNIT.offset_of("tags_code")
DAMAGES: Final[dict[str, Callable[[Path, int], Path]]] = {
    "the first message's unit": lambda root, first: _flip(_ext_file(root, first), first % EXT_FILE_SIZE + TAGS),
    "its length": lambda root, first: _flip(_ext_file(root, first), first % EXT_FILE_SIZE + LENGTH + 1),
    "a later unit": lambda root, first: _flip(_ext_file(root, first + EXT_FILE_SIZE), TAGS),
    "a later file": lambda root, first: _gone(_ext_file(root, first + EXT_FILE_SIZE)),
    "the first message's entry": lambda root, first: _flip(*_entry_of(root, first)),
}


def _entry_of(root: Path, ext_place: int) -> tuple[Path, int]:
    """The file and the place of the entry with an ext address."""
    for path in sorted((root / paths.CONSUMEQUEUE / QUEUE).iterdir()):
        for number, entry in enumerate(queue.ENTRY.struct.iter_unpack(path.read_bytes())):
            if queue.ext_offset(entry[2]) == ext_place:
                return path, number * queue.ENTRY.size_bytes
    raise AssertionError(ext_place)


def _segments_of(name: str) -> int:
    """So many that the first message's unit lies amid a file that is not the first."""
    return {"cqext-497": 2, "cqext-533": 3}[name]


@pytest.mark.product
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_damaged_is_mended(name: str, damage: str, expired: Expired) -> None:
    root, opener = expired(name, _segments_of(name))
    first = _first_unit(root)
    assert first > EXT_FILE_SIZE
    assert first % EXT_FILE_SIZE
    before = {tree: stores.contents(root / tree) for tree in TREES}
    file = DAMAGES[damage](root, first)
    recovery = opener.recover(root)
    assert {step.path for step in recovery.plan.steps if step.path.startswith(TREES)} == {str(file.relative_to(root))}
    apply_to(recovery, root)
    assert {tree: stores.contents(root / tree) for tree in TREES} == before
    _assert_sound(opener, root)


def _assert_sound(opener: Opener, root: Path) -> None:
    assert opener.recover(root).plan.steps == ()
    assert [f.code for f in opener.check(root) if f.severity != "info"] == []
    outcome = opener.predict(root)
    assert (outcome["starts"], outcome["lost_messages"]) == (True, 0)


@pytest.mark.parametrize("name", NAMES)
def test_units_keep_their_places_where_those_in_front_of_them_are_gone(name: str, expired: Expired) -> None:
    """In front of the first message's stand units of the usual length then, over which a broker walks."""
    root, opener = expired(name, _segments_of(name))
    first = _first_unit(root)
    file = _ext_file(root, first)
    was, at = file.read_bytes(), first % EXT_FILE_SIZE
    file.unlink()
    recovery = opener.recover(root)
    assert [step.path for step in recovery.plan.steps if step.path.startswith(TREES)] == [str(file.relative_to(root))]
    apply_to(recovery, root)
    now = file.read_bytes()
    assert now[at:] == was[at:]
    assert now[:at] == UNIT.struct.pack(UNIT.size_bytes, 0, 0, 0) * (at // UNIT.size_bytes)
    _assert_sound(opener, root)


@pytest.mark.parametrize("name", NAMES)
def test_a_length_among_the_units_in_front_is_set_right(name: str, expired: Expired) -> None:
    root, opener = expired(name, _segments_of(name))
    file = _ext_file(root, _first_unit(root))
    was = file.read_bytes()
    _flip(file, LENGTH + 1)
    apply_to(opener.recover(root), root)
    assert file.read_bytes() == was
    _assert_sound(opener, root)


@pytest.mark.parametrize("queue_name", [QUEUE, f"{paths.SCHEDULE_TOPIC}/0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_at_which_brokers_do_not_start_goes_although_it_has_expired(
    name: str, queue_name: str, expired: Expired
) -> None:
    root, opener = expired(name, _segments_of(name))
    file = root / paths.CONSUMEQUEUE_EXT / queue_name / paths.segment_name(0)
    data = bytearray(file.read_bytes())
    UNIT.field_struct("size_bytes").pack_into(data, LENGTH, EXT_FILE_SIZE + 1)
    file.write_bytes(data)
    assert not opener.predict(root)["starts"]
    recovery = opener.recover(root)
    steps = [(step.op, step.path) for step in recovery.plan.steps if step.path.startswith(TREES)]
    assert steps == [(Op.REMOVE_FILE, str(file.relative_to(root)))]
    apply_to(recovery, root)
    _assert_sound(opener, root)


@pytest.mark.parametrize("harm", ["gone", "cut off"])
def test_what_joins_no_further_file_goes(harm: str, expired: Expired) -> None:
    """Files in front of one that has expired and is damaged: a broker deletes from the front."""
    root, opener = expired("cqext-533", 4)
    first, files = _first_unit(root), sorted((root / paths.CONSUMEQUEUE_EXT / QUEUE).iterdir())
    assert first > 2 * EXT_FILE_SIZE
    if harm == "gone":
        files[1].unlink()
    else:
        files[1].write_bytes(files[1].read_bytes()[:-1])
    gone = files[: 2 if harm == "cut off" else 1]
    recovery = opener.recover(root)
    steps = [(step.op, step.path) for step in recovery.plan.steps if step.path.startswith(TREES)]
    assert steps == [(Op.REMOVE_FILE, str(file.relative_to(root))) for file in gone]
    apply_to(recovery, root)
    _assert_sound(opener, root)


@pytest.mark.parametrize("name", NAMES)
def test_entries_tell_the_places_where_no_unit_is_left(name: str, expired: Expired) -> None:
    root, opener = expired(name, _segments_of(name))
    before, first = stores.contents(root / paths.CONSUMEQUEUE), _first_unit(root)
    shutil.rmtree(root / paths.CONSUMEQUEUE_EXT / QUEUE)
    apply_to(opener.recover(root), root)
    assert stores.contents(root / paths.CONSUMEQUEUE) == before
    assert min((root / paths.CONSUMEQUEUE_EXT / QUEUE).iterdir()) == _ext_file(root, first)
    _assert_sound(opener, root)


@pytest.mark.parametrize("name", NAMES)
def test_units_are_counted_from_the_first_file_where_no_entry_tells(name: str, expired: Expired) -> None:
    root, opener = expired(name, _segments_of(name))
    for tree in TREES:
        shutil.rmtree(root / tree / QUEUE)
    apply_to(opener.recover(root), root)
    assert _first_unit(root) == 0
    _assert_sound(opener, root)
