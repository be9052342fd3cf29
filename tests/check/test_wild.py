"""Whatever a store's files hold, a check ends with findings: no traceback, no hang, nothing written."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.check.store import check_store
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore
from tests.damage import Damageable

NAMES = ("x", "00000000000000000007", "99999999999999999999", "٠" * 20, "20261121021839108")


def harm(rng: random.Random, path: Path) -> None:
    """One stroke at a file: bytes, length, name or kind."""
    data = bytearray(path.read_bytes())
    at, size = rng.randrange(len(data)), rng.choice((1, 4, 8, 20, 100, 1000))
    match rng.randrange(6):
        case 0 | 1:
            junk = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
            data[at : at + size] = junk[: len(data) - at]
            path.write_bytes(data)
        case 2:
            path.write_bytes(data[:at])
        case 3:
            path.write_bytes(data + rng.randbytes(rng.randrange(1, 5000)))
        case 4:
            path.rename(path.with_name(rng.choice(NAMES)))
        case 5:
            path.unlink()
            if rng.random() < 0.5:
                path.mkdir()


@pytest.mark.parametrize("name", ["load-533", "bcq-533", "cqext-533", "lmq-533", "clean-430"])
def test_any_damage_ends_in_findings(golden: GoldenStore, tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    for number in range(12):
        root = tmp_path / str(number)
        shutil.copytree(golden(name), root, ignore=shutil.ignore_patterns("timerwheel"))
        for _ in range(rng.randrange(1, 5)):
            files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
            harm(rng, rng.choice(files))
        before = stores.snapshot(root)
        with Store.open(root) as store:
            report = check_store(store)
        assert {f.code for f in report.findings} == set(report.summary)
        assert stores.snapshot(root) == before
        shutil.rmtree(root)


@pytest.mark.parametrize("letter", [b"}", b"{", b"\xed"])
def test_a_topic_may_hold_anything(letter: bytes, damageable: Callable[..., Damageable]) -> None:
    """It stands in what is said of the entry that leads to it."""
    store = damageable("load-533")
    message = next(m for m in store.truth["messages"] if m["topic"] == "Calm_orders" and m["bodyLength"] > 0)
    data = store.read(message["phyOffset"], message["storeSize"])
    store.write(message["phyOffset"] + data.index(b"Calm_orders"), letter)
    with Store.open(store.root) as opened:
        [found] = [finding for finding in check_store(opened).findings if finding.code == "Q002"]
    topic = (letter + b"alm_orders").decode(errors="replace")
    assert found.message == f"1 entry pointing to another queue's record, of {topic} queue {message['queueId']}"
