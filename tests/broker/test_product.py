"""A part of the product (tests/broker/product.py) in every run: cells that once told something new, and cells drawn anew each time."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from store_core.broker.versions import Version
from store_core.layout import paths
from tests import stores
from tests.broker.axes import AXES, BatchNumbers, Cell, ExtUnits, HighestBatchNumber, Properties, Surgery, product
from tests.broker.piles import Pile
from tests.broker.product import OTHER_RUNS, RUNS, SEED, Damage, judge, sample
from tests.broker.product_page import decision_table

DRAWN: Final = 5
MORE_PILES: Final = 4  # not drawn anew: some harms to such stores are known to be left out (docs/prediction.md)
# A seed of one's own repeats a run: RMQCTL_PRODUCT_SEED=…
DRAW_SEED: Final = int(os.environ.get("RMQCTL_PRODUCT_SEED") or random.SystemRandom().randrange(10**9))

FIXED: Final = tuple(
    Cell(tuple(text.split("/")))
    for text in (
        "clean/sane/missing/zeroed page",  # 4.x dispatches on between two records of the next segment
        "clean/zero/tail lost/stale tail",
        "clean/sane/ghosts/stale tail",  # 5.x is left with an empty queue file and does not load
        "crash/missing/ghosts/missing middle file",
        "crash/ahead/filler at the end/flipped body",
        "clean/sane/missing/missing middle file",
        "crash/zero/one missing/flipped length",
        "crash/sane/hole/torn tail",
        "clean/ahead/whole/empty last file",
        "crash/missing/whole/short last file",
    )
)
OTHER_SEED: Final = (
    # 4.3.0 counts the log's end behind its last file, and goes on at the end of that ...
    (Cell(("crash", "sane", "ghosts", "flipped length")), 3),
    # ... or in front of the last record's end, which its entry leads to.
    (Cell(("crash", "sane", "hole", "flipped length")), 11),
    # It gives a record whose length is wrong an entry that leads to the log's first one.
    (Cell(("crash", "ahead", "missing", "flipped length")), 12),
)
# Piles of harms by the store, each with a seed: entries of another size, of another queue, and in any order.
PILES: Final[dict[str, tuple[tuple[Pile, int], ...]]] = {
    "load-497": tuple((Pile(number), 77) for number in (18, 30, 51, 103, 150)),
    "load-533": tuple((Pile(number), 77) for number in (9, 44, 78, 105, 245)),
}
OTHER_PILES: Final[dict[str, tuple[tuple[Pile, int], ...]]] = {
    "bcq-533": ((Pile(92), 81),),  # the last entry of a batch queue has a lower number than others in front of it
    # A delay queue begins at 2^32; delivery times lie in a further file; one of these has a wrong length.
    "cqext-497": ((Pile(3), 80), (Pile(32), 81), (Pile(23, further=True), 85)),
    "cqext-533": ((Pile(23, further=True), 85),),  # a unit in such a file reaches behind its end
    "lmq-497": ((Pile(3), 81),),  # in light queues alone
}
SURGERY: Final = (
    Surgery("load-497", ("size-plus-one-last",), "crash"),  # 4.3.0 walks over it
    Surgery("load-497", ("cq-removed", "log-missing-mid"), "clean"),
    Surgery("load-497", ("zero-page-mid", "cq-removed", "checkpoint-removed"), "crash"),
    Surgery("load-533", ("log-missing-first", "cq-removed"), "clean"),
    Surgery("load-533", ("magic-first-mid", "cq-all-tail-lost", "checkpoint-removed"), "crash"),
    Surgery("load-533", ("log-full-then-old-file", "cq-removed"), "clean"),
)

# Numbers in properties at which a release's check of a record fails, others at which it does not; what releases read in two ways.
_BATCH = b"INNER_NUM\x01%b\x02INNER_BASE\x01%b\x02"
_LEVEL = b"DELAY\x01%b\x02"
NUMBERS: Final = (
    *(
        Properties(_BATCH % numbers, "crash")
        for numbers in ((b"x", b"1"), (b"2", b"y"), (b"40000", b"1"), (b"1", b"+7"), (b"1\x02INNER_NUM\x01x", b"3"))
    ),
    Properties(b"INNER_NUM\x01x\x02", "crash"),
    Properties(_BATCH % (b"x", b"1"), "crash", by=1),
    Properties(_LEVEL % b"x", "crash"),
    *(
        Properties(text, "crash", paths.SCHEDULE_TOPIC, without_derived=True)
        for text in (_LEVEL % b"x", _LEVEL % b"+3", _LEVEL % b"3" + _LEVEL % b"x", _LEVEL % b"x" + _LEVEL % b"3")
    ),
    Properties(_LEVEL % b"99999999999", "clean", paths.SCHEDULE_TOPIC, without_derived=True),
    # The level is read before the length is compared; only a wrong length counts as a record that is passed over.
    Properties(_LEVEL % b"x", "clean", paths.SCHEDULE_TOPIC, by=1, without_derived=True),
    Properties(_LEVEL % b"3", "crash", paths.SCHEDULE_TOPIC, by=1, without_derived=True),
    # Values with the separator in them: to releases before 4.9.1 such a property is none.
    *(
        Properties(text.replace(b"|", b"\x01") + b"\x02", "crash", without_derived=True)
        for text in (
            b"TAGS|a|b",
            b"TAGS|a\x02TAGS|b|c",
            b"KEYS|k l|m",
            b"UNIQ_KEY|u|",
            b"UNIQ_KEY||u",
            b"TAGS|a||\x02KEYS||",
        )
    ),
    *(
        Properties(_LEVEL % text, "crash", paths.SCHEDULE_TOPIC, without_derived=True)
        for text in (b"3\x01", b"3\x014", b"x\x01", b"3\x02DELAY\x01x\x01y")
    ),
)


BATCH_NUMBERS: Final[list[Damage]] = [BatchNumbers(entries, n) for n, entries in enumerate((1, 1, 2, 5, 20))]
HIGHEST: Final[list[Damage]] = [HighestBatchNumber(new, exit) for new in (True, False) for exit in ("clean", "crash")]
EXT_UNITS: Final[list[Damage]] = [ExtUnits(units, n) for n, units in enumerate((1, 1, 1, 2, 5, 20))]


@pytest.mark.parametrize(("version", "base"), RUNS)
def test_predictions_agree_with_real_store_code(
    version: str, base: str, jars: Callable[[str], Path], tmp_path: Path
) -> None:
    jars(version)
    fixed: list[Damage] = [*FIXED, *NUMBERS, *(surgery for surgery in SURGERY if surgery.base == base)]
    draws = [*OTHER_SEED, *PILES.get(base, ()), *((cell, SEED) for cell in fixed)]
    draws += [(cell, DRAW_SEED) for cell in sample(DRAWN, DRAW_SEED)]
    print(f"RMQCTL_PRODUCT_SEED={DRAW_SEED} draws the same cells again")
    verdicts = [*judge(version, base, draws, folder=tmp_path)]
    assert {str(v.cell): v.differences for v in verdicts if v.differences} == {}, f"seed {DRAW_SEED}"
    assert len(verdicts) == len(draws)


@pytest.mark.product(8)
@pytest.mark.parametrize(("version", "base"), OTHER_RUNS)
def test_predictions_agree_on_stores_of_every_kind(
    version: str, base: str, jars: Callable[[str], Path], tmp_path: Path
) -> None:
    jars(version)
    draws: list[tuple[Damage, int]] = [*OTHER_PILES.get(base, ())]
    draws += [(Pile(number, further=True), SEED) for number in range(MORE_PILES)]
    if base == "bcq-533":
        draws += [(each, DRAW_SEED) for each in BATCH_NUMBERS] + [(each, SEED) for each in HIGHEST]
        print(f"RMQCTL_PRODUCT_SEED={DRAW_SEED} draws the same numbers again")
    if base.startswith("cqext"):
        draws += [(each, SEED) for each in EXT_UNITS]
    verdicts = [*judge(version, base, draws, folder=tmp_path)]
    assert {str(v.cell): v.differences for v in verdicts if v.differences} == {}
    assert len(verdicts) == len(draws)


def test_a_prediction_for_another_release_is_found_to_differ(jars: Callable[[str], Path], tmp_path: Path) -> None:
    jars("5.3.3")
    cells = ("clean/sane/missing/whole", "crash/sane/whole/whole")  # 5.1.4 rebuilds no queues after a clean stop
    draws: list[tuple[Cell | Surgery, int]] = [(Cell(tuple(cell.split("/"))), SEED) for cell in cells]
    verdicts = {v.cell: v.differences for v in judge("5.3.3", "load-533", draws, folder=tmp_path, column="5.1.4")}
    found = [sorted(what for what in verdicts[cell] if not what.startswith("queue (")) for cell, _ in draws]
    assert found == [["first file scanned", "index", "index rebuilt", "lost messages", "queue spans"], []]


def test_the_product_has_every_combination_once() -> None:
    cells = [*product()]
    assert len(cells) == len(set(cells)) == 2 * 4 * 7 * 9


def test_the_page_shows_the_decision_table_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "prediction.md").read_text()
    releases = sorted({Version.parse(version) for version, _ in RUNS})
    assert decision_table(releases) in page, (
        "write the page anew: python -m tests.broker.product --out docs/prediction.md"
    )


@pytest.mark.parametrize(
    ("axis", "value"), [(axis, value) for axis, values in AXES.items() for value in values if axis != "exit"]
)
def test_each_harm_changes_the_store_and_is_the_same_each_time(
    axis: str, value: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    cell = Cell(tuple(value if name == axis else next(iter(values)) for name, values in AXES.items()))
    before = stores.contents(golden("load-533"))
    after = []
    for number in range(2):
        root = stores.copy_store(golden("load-533"), tmp_path / str(number))
        cell.apply(root, stores.truth("load-533"), SEED)
        after.append(stores.contents(root))
    assert after[0] == after[1]
    assert (after[0] != before) is (value not in ("sane", "whole"))
