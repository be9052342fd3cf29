"""A part of the mended product (tests/broker/mended_product.py) in every run: cells drawn anew, and piles of harms that once told something new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.broker import mended_product
from tests.broker.axes import Cell
from tests.broker.mended_product import judge
from tests.broker.piles import Pile
from tests.broker.product import RUNS, SEED, Damage, sample
from tests.broker.test_product import BATCH_NUMBERS, DRAW_SEED, DRAWN, EXT_UNITS
from tests.recovery.recovering import Opener, harm

FIXED: Final = tuple(
    Cell(tuple(text.split("/")))
    for text in (
        "crash/sane/ghosts/missing middle file",  # old entries lead into records that are lost
        "crash/zero/missing/zeroed page",
        "clean/sane/hole/flipped length",
    )
)
# Numbers of piles by the store and the release, with seed SEED.
PILES: Final[dict[tuple[str, str], tuple[int, ...]]] = {
    ("5.3.3", "load-533"): (10, 14, 35, 38, 61, 84, 89),
    ("4.9.7", "load-497"): (4, 10, 16, 59, 61, 74, 89),
}


@pytest.mark.parametrize(("version", "base"), RUNS)
def test_mended_stores_are_served_whole(version: str, base: str, jars: Callable[[str], Path], tmp_path: Path) -> None:
    jars(version)
    fixed: list[Damage] = [*FIXED, *map(Pile, PILES.get((version, base), ()))]
    draws = [*((each, SEED) for each in fixed), *((cell, DRAW_SEED) for cell in sample(DRAWN, DRAW_SEED))]
    print(f"RMQCTL_PRODUCT_SEED={DRAW_SEED} draws the same cells again")
    verdicts = [*judge(version, base, draws, folder=tmp_path)]
    assert {str(v.cell): v.wrong for v in verdicts if v.wrong} == {}, f"seed {DRAW_SEED}"
    assert len(verdicts) == len(draws)


@pytest.mark.parametrize(
    ("version", "base", "draws"),
    [
        *((release, "bcq-533", BATCH_NUMBERS) for release in ("5.1.4", "5.3.3", "5.4.0")),
        ("4.9.7", "cqext-497", EXT_UNITS),
        ("5.3.3", "cqext-533", EXT_UNITS),
    ],
)
def test_mended_batch_queues_and_further_files_are_served_whole(
    version: str, base: str, draws: list[Damage], jars: Callable[[str], Path], tmp_path: Path
) -> None:
    jars(version)
    print(f"RMQCTL_PRODUCT_SEED={DRAW_SEED} draws the same numbers again")
    verdicts = [*judge(version, base, [(each, DRAW_SEED) for each in draws], folder=tmp_path)]
    assert {str(v.cell): v.wrong for v in verdicts if v.wrong} == {}, f"seed {DRAW_SEED}"
    assert len(verdicts) == len(draws)


def test_a_store_that_is_not_mended_is_found_to_be_not_whole(
    jars: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars("5.3.3")

    def only_planned(golden: Path, root: Path, base: str, opener: Opener) -> object:
        return opener.recover(root), harm(golden, root, base)

    monkeypatch.setattr(mended_product, "mended", only_planned)
    draws: list[tuple[Damage, int]] = [(cell, SEED) for cell in FIXED]
    verdicts = [*judge("5.3.3", "load-533", draws, folder=tmp_path)]
    assert all(verdict.wrong for verdict in verdicts)
