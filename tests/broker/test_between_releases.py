"""What a broker of another release makes of a store: 5.5 goes by a queue offset that 5.4 neither writes nor moves.

Each start is predicted, and carried out by the real code of that release.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from store_core.layout import paths, record
from store_core.layout.checkpoint import CHECKPOINT
from tests import stores
from tests.broker import oracle
from tests.broker.conftest import OpenStore
from tests.broker.outcomes import Differences, compare_with_recorded
from tests.conftest import DamagedStore, StoreCopy
from tests.surgery import Exit, set_exit

pytestmark = [pytest.mark.broker, pytest.mark.leaves_damage("a broker is asked what it makes of it")]

_START_MS: Final = 2500
Change = Callable[[Path], None]


def _nothing(root: Path) -> None:
    """Leave the store as it was left."""


def _no_queues(root: Path) -> None:
    shutil.rmtree(root / paths.CONSUMEQUEUE)


def _no_checkpoint(root: Path) -> None:
    (root / paths.CHECKPOINT).unlink()
    _no_queues(root)


def _set_queue_offset(root: Path, phy_offset: int) -> None:
    path = root / paths.CHECKPOINT
    values = CHECKPOINT.read(path.read_bytes()) | {"logics_phy_offset": phy_offset}
    path.write_bytes(CHECKPOINT.struct.pack(*values.values()).ljust(path.stat().st_size, b"\0"))


def _offset_beyond_the_log(root: Path) -> None:
    _set_queue_offset(root, 10_000_000)
    _no_queues(root)


def _stale_offset(root: Path) -> None:
    """As 5.4 leaves it, which has put and dispatched since."""
    _set_queue_offset(root, 300_000)
    _no_queues(root)


def _negative_blank(root: Path) -> None:
    """The blank at the end of the third segment has a size of -1; after a crash all is scanned."""
    segment = sorted((root / paths.COMMITLOG).iterdir())[2]
    data = bytearray(segment.read_bytes())
    at = data.rindex(record.PREFIX.struct.pack(0, record.MAGIC_BLANK)[4:]) - 4
    data[at : at + 4] = (-1).to_bytes(4, signed=True)
    segment.write_bytes(data)
    _no_checkpoint(root)


def _run(
    open_store: OpenStore, root: Path, tmp_path: Path, version: str, base: str, settings: str = ""
) -> tuple[dict[str, Any], Differences]:
    """What a release makes of the store, and what of that was not predicted."""
    properties = stores.properties_text(base) + settings
    config = tmp_path / "between.conf"
    config.write_text(properties)
    told = open_store(version, root, properties, start_ms=_START_MS, stop=False)
    told.setdefault("afterStart", {"returned": False})
    return told, compare_with_recorded(root, config, told, version)


_FAST = "enableAcceleratedRecovery=true\n"
_BOUNDED = "checkCommitLogOffsetOnRecover=true\n"


@pytest.mark.parametrize(
    ("version", "base", "exit", "change", "settings", "end", "entries"),
    [
        # 5.4 was killed, then 5.5: entries of files before the newest stay missing.
        ("5.5.1", "crash-540", "crash", _no_queues, "", 755_139, 547),
        ("5.4.0", "crash-540", "crash", _no_queues, "", 755_139, 1780),
        # ... and with accelerated recovery it does not start.
        ("5.5.1", "crash-540", "crash", _nothing, _FAST, None, None),
        ("5.5.0", "load-551-aged", "crash", _nothing, _FAST, 924_963, 2183),
        ("5.5.1", "load-551-aged", "crash", _stale_offset, _FAST, 300_000, 0),  # where no record starts
        ("5.5.1", "load-551-aged", "crash", _offset_beyond_the_log, _FAST, None, None),
        ("5.5.1", "load-551-aged", "crash", _offset_beyond_the_log, "", 924_963, 18),
        # 5.5, then 5.4.
        ("5.4.0", "load-551-aged", "clean", _nothing, "", 924_963, 2183),
        ("5.4.0", "load-551-aged", "crash", _no_queues, "", 924_963, 1858),
        ("5.4.0", "crash-551", "crash", _nothing, "", 750_481, 1797),
        ("5.4.0", "crash-551-aged", "crash", _no_queues, "", 898_904, 2123),
        # 5.5, 5.4, 5.5: a stale offset, too low, has more scanned.
        ("5.5.1", "load-551-aged", "crash", _stale_offset, "", 924_963, 1554),
        # A blank of negative size ends the log from 5.5.1 on.
        ("5.5.0", "load-533", "crash", _negative_blank, "", 975_542, 2183),
        ("5.5.1", "load-533", "crash", _negative_blank, "", 392_934, 895),
    ],
)
def test_start_ends_as_the_real_one(
    open_store: OpenStore,
    store_copy: StoreCopy,
    tmp_path: Path,
    version: str,
    base: str,
    exit: Literal["clean", "crash"],
    change: Change,
    settings: str,
    end: int | None,
    entries: int | None,
) -> None:
    root = store_copy(base, exit)
    change(root)
    told, wrong = _run(open_store, root, tmp_path, version, base, settings)
    assert wrong == {}
    state = told["afterStart"] if told["load"]["ok"] else {}
    found = sum(q["max"] - q["min"] for q in state.get("queues", []) if q["max"] > 0)
    assert (state.get("maxPhyOffset"), found if state else None) == (end, entries)


@pytest.mark.parametrize("settings", ["", _BOUNDED])
@pytest.mark.parametrize("exit", ["clean", "crash"])
def test_an_old_segment_under_the_newest_name(
    open_store: OpenStore, damaged: DamagedStore, tmp_path: Path, exit: Exit, settings: str
) -> None:
    root = damaged("load-551-aged", "log-extra-old-file", exit)
    told, wrong = _run(open_store, root, tmp_path, "5.5.0", "load-551-aged", settings)
    assert wrong == {}
    is_bounded = bool(settings) and exit == "crash"
    assert told["afterStart"]["maxPhyOffset"] == (1_048_576 if is_bounded else 1_179_212)


@pytest.mark.parametrize("version", ["5.4.0", "5.5.1"])
def test_lists_in_dead_letters_count_for_queues_in_files(
    open_store: OpenStore, store_copy: StoreCopy, tmp_path: Path, version: str
) -> None:
    """5.5 leaves them out of queues in RocksDB alone."""
    root = store_copy("lmq-533", "clean")
    put = oracle.put("%DLQ%group", 0, "dead", {"INNER_MULTI_DISPATCH": "%LMQ%dead"})
    properties = stores.properties_text("lmq-533")
    written = open_store("5.4.0", root, properties, requests=[put], start_ms=_START_MS)
    assert written["answers"][0]["status"] == "PUT_OK"
    root = Path(written["root"])
    _no_checkpoint(root)
    set_exit(root, "crash")
    told, wrong = _run(open_store, root, tmp_path, version, "lmq-533")
    assert wrong == {}
    light = [q["max"] for q in told["afterStart"]["queues"] if q["topic"] == "%LMQ%dead"]
    assert light == [1]


def test_a_bad_record_in_an_old_segment_cuts_the_log_in_5_4(
    open_store: OpenStore, damaged: DamagedStore, tmp_path: Path
) -> None:
    """5.5, which scans the newest segment alone, does not meet it."""
    root = damaged("load-551-aged", "flip-body-mid", "crash")
    (root / paths.CHECKPOINT).write_bytes(bytes(4096))
    told, wrong = _run(open_store, root, tmp_path, "5.4.0", "load-551-aged")
    assert wrong == {}
    assert told["afterStart"]["maxPhyOffset"] == 594_861


def test_5_4_leaves_the_queue_offset_as_it_was(open_store: OpenStore, store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy("load-551-aged", "clean")
    properties = stores.properties_text("load-551-aged")
    put = oracle.put("Long_orders", 0, "by 5.4", {"KEYS": "later"})
    between = Path(open_store("5.4.0", root, properties, requests=[put], start_ms=_START_MS)["root"])
    before, after = (CHECKPOINT.read((path / paths.CHECKPOINT).read_bytes()) for path in (root, between))
    assert after["logics_phy_offset"] == before["logics_phy_offset"] == 924_470
    assert after["logics_msg_timestamp_ms"] > before["logics_msg_timestamp_ms"]
    set_exit(between, "crash")
    told, wrong = _run(open_store, between, tmp_path, "5.5.1", "load-551-aged")
    assert wrong == {}
    assert told["afterStart"]["maxPhyOffset"] > 924_963
