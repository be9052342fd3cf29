"""Random damage of all kinds: the prediction agrees with real store code, and what recovery keeps is whole.

50 new cases a release under the ``broker`` marker, 1,000 under ``exhaustive``; RMQCTL_RANDOM_SEED draws a run's cases again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests import stores
from tests.broker import mended_product, product
from tests.broker.mended_product import Verdict as MendedVerdict
from tests.broker.random_damage import STORES, RandomDamage, draws
from tests.conftest import StoreCopy

SEED: Final = int(os.environ.get("RMQCTL_RANDOM_SEED") or random.randrange(1 << 32))
FEW: Final = 50
MANY: Final = 1000
_MOST_WRONG: Final = 0.005  # of the cases

CASES: Final = [
    pytest.param(version, count, marks=[pytest.mark.broker, *([pytest.mark.exhaustive] if count == MANY else [])])
    for version in STORES
    for count in (FEW, MANY)
]


@pytest.mark.parametrize(("version", "count"), CASES)
def test_prediction_agrees_with_real_store_code(
    version: str, count: int, jars: Callable[[str], Path], tmp_path: Path
) -> None:
    jars(version)
    print(f"RMQCTL_RANDOM_SEED={SEED} draws the same cases again")
    wrong, seen = {}, 0
    for base, cases in draws(version, count, SEED).items():
        for verdict in product.judge(version, base, [(case, SEED) for case in cases], folder=tmp_path):
            seen += 1
            if verdict.differences:
                wrong[f"{base}: {verdict.cell}"] = verdict.differences
    assert seen == count
    assert len(wrong) <= count * _MOST_WRONG, wrong


@pytest.mark.parametrize(("version", "count"), CASES)
def test_recovery_keeps_what_is_intact(version: str, count: int, jars: Callable[[str], Path], tmp_path: Path) -> None:
    jars(version)
    print(f"RMQCTL_RANDOM_SEED={SEED} draws the same cases again")
    wrong, seen = {}, 0
    for base, cases in draws(version, count, SEED).items():
        verdicts: list[MendedVerdict] = [
            *mended_product.judge(version, base, [(case, SEED) for case in cases], folder=tmp_path, is_undone=True)
        ]
        seen += len(verdicts)
        wrong.update((f"{base}: {verdict.cell}", verdict.wrong) for verdict in verdicts if verdict.wrong)
    assert seen == count
    assert wrong == {}


def test_a_case_is_the_same_each_time(store_copy: StoreCopy) -> None:
    truth = stores.truth("load-533")
    for number in range(8):
        one, other = store_copy("load-533"), store_copy("load-533")
        assert RandomDamage(number).kinds_done(one, truth, 7) == RandomDamage(number).kinds_done(other, truth, 7)
        assert stores.contents(one) == stores.contents(other)
