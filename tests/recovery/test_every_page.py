"""A bit wrong in every page, as bad memory leaves it: what no bit of is wrong stands where it stood."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from store_core.layout import paths
from tests import stores
from tests.conftest import GoldenStore
from tests.recovery.recovering import DamageableOf, Opener, SettingsOf, apply_to, assert_kept, harm, log_bytes

_STAYS: Final = pytest.mark.leaves_damage("properties stay damaged where the record can be read")
NAMES: Final = (
    *("load-497", "load-533", "clean-540", "clean-430", "crash-533", "cqext-533"),
    *(pytest.param(name, marks=_STAYS) for name in ("propcrc-533", "lmq-533")),
)
_PAGE_SIZE_BYTES: Final = 4096


def _flip_a_bit_in_every_page(path: Path, chance: random.Random) -> None:
    """Pages of nothing but zeros stay: nothing was ever written there."""
    data = bytearray(path.read_bytes())
    for page in range(0, len(data), _PAGE_SIZE_BYTES):
        if used := len(data[page : page + _PAGE_SIZE_BYTES].rstrip(b"\0")):
            data[page + chance.randrange(used)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


@pytest.mark.product
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "queues",
    ["whole", "harmed", pytest.param("lost", marks=pytest.mark.leaves_damage("nobody knows some lost numbers"))],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_bit_wrong_in_every_page(
    name: str, queues: str, seed: int, damageable: DamageableOf, golden: GoldenStore, settings_of: SettingsOf
) -> None:
    store = damageable(name, "crash")
    chance = random.Random(f"{name} {seed}")
    for start in log_bytes(store.root):
        _flip_a_bit_in_every_page(store.root / paths.COMMITLOG / paths.segment_name(start), chance)
    if queues == "lost":
        shutil.rmtree(store.root / paths.CONSUMEQUEUE)
    for path in sorted((store.root / paths.CONSUMEQUEUE).rglob("0*")) if queues == "harmed" else ():
        if path.is_file():
            _flip_a_bit_in_every_page(path, chance)
    opener = Opener(settings_of(name), stores.truth(name)["written_by"])
    found = harm(golden(name), store.root, name)
    apply_to(opener.recover(store.root), store.root)
    assert_kept(golden(name), store.root, name, found.intact)
    assert opener.recover(store.root).plan.steps == ()
    if queues != "lost":  # there, a tombstone may stand where its number cannot be
        assert opener.predict(store.root)["lost_messages"] == 0
