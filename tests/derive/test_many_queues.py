"""Of many queues it is known at once which have consecutive numbers: these are neither numbered nor compared row by row."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_core.check import store as check_module
from store_core.check.store import check_store
from store_core.derive import queues as queues_module
from store_core.derive import spool
from store_core.derive.numbering import number_rows
from store_core.derive.queues import QueueBuilder
from store_core.derive.spool import QueueSpooler, RowsByQueue
from store_core.kernel.derive import ROW
from store_core.layout import paths
from store_core.storage.store import Store
from tests.conftest import DamagedStore, GoldenStore
from tests.derive.test_queues import contents, spooled

NAMES = ("clean-533", "crash-497", "lmq-533", "load-497", "bcq-533", "cqext-533")


def _few_and_many(store: Store, folder: Path) -> tuple[RowsByQueue, RowsByQueue]:
    """The rows of a store as they are kept for few queues, and for many."""
    few, many = folder / "few", folder / "many"
    few.mkdir()
    many.mkdir()
    return spooled(store, few, 1 << 20), spooled(store, many, 100)


@pytest.fixture(autouse=True)
def always_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one run is always merged."""
    monkeypatch.setattr(spool, "_SHORT_ITEM_ROWS", 1 << 20)


@pytest.mark.parametrize("name", NAMES)
def test_plain_queues_are_those_with_one_stretch(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    with Store.open(golden(name)) as store:
        few, many = _few_and_many(store, tmp_path)
        with few, many:
            for key in many.queue_keys():
                numbering = number_rows(few.stretches(key), partial(few.row, key))
                rows = np.concatenate(list(few.rows(key)))
                is_plain = bool((np.diff(rows["queue_offset"]) == 1).all()) and len(rows) <= 100
                plain = many.plain(key)
                assert (plain is not None) == is_plain
                if plain is not None:
                    assert [(s.queue_offset, s.row, s.count) for s in numbering.stretches] == [
                        (plain.queue_offset, 0, plain.rows)
                    ]
                    last = rows[-1]
                    assert plain[2:] == (last["phy_offset"], last["store_timestamp_ms"])


@pytest.mark.parametrize("name", NAMES)
def test_many_queues_are_built_as_few(
    golden: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with Store.open(golden(name)) as store:
        few, many = _few_and_many(store, tmp_path)
        with few, many:
            builders = QueueBuilder(few, 4000), QueueBuilder(many, 4000)
            for key in builders[0].queue_keys():
                summaries, files = zip(*((b.summary(key), contents(b.files(key))) for b in builders), strict=True)
                assert summaries[0] == summaries[1]
                assert files[0] == files[1]
            assert any(many.plain(key) for key in many.queue_keys())
            monkeypatch.setattr(queues_module, "number_rows", None)
            again = QueueBuilder(many, 4000)
            for key in many.queue_keys():  # those are not numbered
                if many.plain(key):
                    assert again.summary(key).messages == many.count(key)
                    assert list(again.files(key))


def _checked(store: Store) -> dict[str, Any]:
    report = check_store(store)
    return {"findings": report.findings, "summary": report.summary}


@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize(
    "name", ["untouched", "cq-hole", "flip-body-mid", "log-missing-mid", "cq-queue-missing", "cq-tail-garbage"]
)
def test_many_queues_are_checked_as_few(
    damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch, name: str, exit: str
) -> None:
    with Store.open(damaged("load-533", name, exit)) as store:
        as_few = _checked(store)
        monkeypatch.setattr(check_module, "QueueSpooler", partial(QueueSpooler, run_rows=600))
        numbered: list[Any] = []
        monkeypatch.setattr(queues_module, "number_rows", lambda *call: numbered.append(1) or number_rows(*call))
        assert _checked(store) == as_few
        assert len(numbered) < len(store.queues)


@pytest.mark.parametrize("byte", [0, 8, 12])
def test_one_entry_that_differs_is_found_in_a_plain_queue(
    damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    monkeypatch.setattr(check_module, "QueueSpooler", partial(QueueSpooler, run_rows=600))
    root = damaged("load-533", "untouched", "clean")
    for file in sorted((root / paths.CONSUMEQUEUE).glob("*/*/*")):
        with Store.open(root) as store:
            assert not check_store(store).findings
        data = bytearray(file.read_bytes())
        data[byte] ^= 1
        file.write_bytes(data)
        with Store.open(root) as store:
            assert check_store(store).findings
        data[byte] ^= 1
        file.write_bytes(data)


def test_rows_of_no_queue_are_none() -> None:
    assert not spool._plain_queues(np.zeros(0, ROW), np.zeros(0, np.int32), 3)["rows"].any()
