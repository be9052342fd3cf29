"""A file with a segment's length whose number is no segment's: a broker takes it for one, recover takes it away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import pytest

from store_core.layout import paths
from store_core.layout.paths import segment_name
from tests import stores
from tests.broker.conftest import OpenStore
from tests.broker.outcomes import compare_with_recorded
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.recovery.recovering import Opener, apply_to

FOREIGN: Final = ((777, b"\x7f" * (1 << 17)), (777, None), (1 << 16, None))
SettingsOf = Callable[[str], Path]


def with_foreign_segment(root: Path, phy_offset: int, content: bytes | None) -> None:
    folder = root / paths.COMMITLOG
    first = min(folder.iterdir())
    (folder / segment_name(phy_offset)).write_bytes(first.read_bytes() if content is None else content)


@pytest.mark.leaves_damage("a broker is asked what it makes of it")
@pytest.mark.parametrize(
    ("version", "base", "exit"),
    [
        ("4.9.7", "load-497", "clean"),
        ("4.9.7", "load-497", "crash"),
        ("5.3.3", "load-533", "clean"),
        ("5.3.3", "load-533", "crash"),
    ],
)
@pytest.mark.parametrize(("phy_offset", "content"), FOREIGN, ids=["garbage", "a copy", "a copy in the midst"])
def test_start_ends_as_the_real_one(
    phy_offset: int,
    content: bytes | None,
    version: str,
    base: str,
    exit: Literal["clean", "crash"],
    store_copy: StoreCopy,
    settings_of: SettingsOf,
    open_store: OpenStore,
) -> None:
    root = store_copy(base, exit)
    with_foreign_segment(root, phy_offset, content)
    told = open_store(version, root, stores.properties_text(base), start_ms=5000, stop=False)
    told.setdefault("afterStart", {"returned": False})
    assert compare_with_recorded(root, settings_of(base), told, version) == {}


@pytest.mark.parametrize("phy_offset", [777, 1 << 16])
@pytest.mark.parametrize("content", [b"\x7f" * (1 << 17), None], ids=["garbage", "a copy"])
def test_recover_gives_up_nothing_for_it(
    phy_offset: int, content: bytes | None, golden: GoldenStore, store_copy: StoreCopy, settings_of: SettingsOf
) -> None:
    root = store_copy("load-533")
    with_foreign_segment(root, phy_offset, content)
    recovery = Opener(settings_of("load-533"), "5.3.3").recover(root)
    assert (recovery.lost, recovery.after.starts, recovery.given_up) == ((), True, ())
    apply_to(recovery, root)
    changed = differences(stores.snapshot(golden("load-533")), stores.snapshot(root))
    assert [path for path in changed if path.startswith(f"{paths.COMMITLOG}/")] == []


@pytest.mark.leaves_damage("a broker is asked what it makes of it")
@pytest.mark.parametrize("name", ["0000000000000393216", "000000000000000393216", "393216", "+0000000000000393216"])
@pytest.mark.parametrize(("version", "base"), [("4.9.7", "load-497"), ("5.3.3", "load-533")])
def test_a_segment_of_a_name_that_only_java_reads(
    name: str, version: str, base: str, store_copy: StoreCopy, settings_of: SettingsOf, open_store: OpenStore
) -> None:
    root = store_copy(base, "crash")
    log = root / paths.COMMITLOG
    (log / segment_name(int(name))).rename(log / name)
    told = open_store(version, root, stores.properties_text(base), start_ms=5000, stop=False)
    assert told["afterStart"]
    assert compare_with_recorded(root, settings_of(base), told, version) == {}
