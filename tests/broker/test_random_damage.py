"""Random damage of all kinds: the prediction agrees with real store code, and what recovery keeps is whole.

In the broker tier 50 cases a release, and the first few of them mended: always the same, so that a failure is a change's. Under
``exhaustive`` 1,000 new ones a release. RMQCTL_RANDOM_SEED draws a run's cases again; a failure tells seed and case.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import stores
from tests.broker import mended_product, product
from tests.broker.product import START_MS, Draw
from tests.broker.random_damage import STORES, RandomDamage, draws
from tests.conftest import StoreCopy

FEW: Final = 50
FEW_MENDED: Final = 4
MANY: Final = 1000
SEED_OF_FEW: Final = 47
SEED_OF_MANY: Final = int(os.environ.get("RMQCTL_RANDOM_SEED") or random.randrange(1 << 32))
_MOST_WRONG: Final = 0.005  # of the cases
_LONG_START_MS: Final = 60_000
_STORES_PER_JVM: Final = 100  # a store that never ends its start leaves threads that slow down the next ones

Judge = Callable[[str, Iterable[Draw], Path, int], Iterable[tuple[str, RandomDamage, dict[str, Any]]]]


def _cases(few: int) -> list[Any]:
    """(release, how many cases, their seed)."""
    rare = [pytest.mark.broker, pytest.mark.exhaustive]
    return [
        param
        for version in STORES
        for param in (
            pytest.param(version, few, SEED_OF_FEW, marks=pytest.mark.broker, id=f"{version}-few"),
            pytest.param(version, MANY, SEED_OF_MANY, marks=rare, id=f"{version}-many"),
        )
    ]


def _wrong(judge: Judge, version: str, count: int, seed: int, folder: Path) -> dict[str, dict[str, Any]]:
    """What is wrong with each case. One is judged again, with more time to start, before it counts: the machine may be busy."""
    drawn = [(base, case, seed) for base, cases in draws(version, count, seed).items() for case in cases]
    first = []
    for start in range(0, count, _STORES_PER_JVM):
        first += judge(version, drawn[start : start + _STORES_PER_JVM], folder / f"from-{start}", START_MS)
    assert len(first) == count
    doubtful = [(base, case, seed) for base, case, found in first if found]
    again = judge(version, doubtful, folder / "again", _LONG_START_MS) if doubtful else ()
    return {f"{version} on {base}: {case}, seed {seed}": found for base, case, found in again if found}


def _predicted(
    version: str, drawn: Iterable[Draw], folder: Path, start_ms: int
) -> Iterator[tuple[str, RandomDamage, dict[str, Any]]]:
    for verdict in product.judge_all(version, drawn, folder=folder, start_ms=start_ms):
        assert isinstance(verdict.cell, RandomDamage)
        yield verdict.base, verdict.cell, verdict.differences


def _mended(
    version: str, drawn: Iterable[Draw], folder: Path, start_ms: int
) -> Iterator[tuple[str, RandomDamage, dict[str, Any]]]:
    for verdict in mended_product.judge_all(version, drawn, folder=folder, is_undone=True, start_ms=start_ms):
        assert isinstance(verdict.cell, RandomDamage)
        # Where the log's first segment is gone, 4.x hands out numbers of what lay in it.
        passed = ("numbers without a message",) if version.startswith("4.") else ()
        wrong = {what: told for what, told in verdict.wrong.items() if what not in passed}
        yield verdict.base, verdict.cell, wrong


@pytest.mark.parametrize(("version", "count", "seed"), _cases(FEW))
def test_prediction_agrees_with_real_store_code(
    version: str, count: int, seed: int, jars: Callable[[str], Path], tmp_path: Path
) -> None:
    jars(version)
    wrong = _wrong(_predicted, version, count, seed, tmp_path)
    assert len(wrong) <= count * _MOST_WRONG, wrong


@pytest.mark.parametrize(("version", "count", "seed"), _cases(FEW_MENDED))
def test_recovery_keeps_what_is_intact(
    version: str, count: int, seed: int, jars: Callable[[str], Path], tmp_path: Path
) -> None:
    jars(version)
    assert _wrong(_mended, version, count, seed, tmp_path) == {}


def test_a_case_is_the_same_each_time(store_copy: StoreCopy) -> None:
    truth = stores.truth("load-533")
    for number in range(8):
        one, other = store_copy("load-533"), store_copy("load-533")
        assert RandomDamage(number).kinds_done(one, truth, 7) == RandomDamage(number).kinds_done(other, truth, 7)
        assert stores.contents(one) == stores.contents(other)
