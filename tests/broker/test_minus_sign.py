"""A segment whose name has a minus sign comes before all others: a start that scans from it on ends in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from store_core.broker.versions import Version
from store_core.layout import paths
from store_core.recovery.prediction.predict import predict
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import StoreCopy
from tests.surgery import apply_case


def test_scan_begins_in_it_without_a_checkpoint(store_copy: StoreCopy, settings_of: Callable[[str], Path]) -> None:
    """Real code had these offsets, and unlinked all other segments."""
    root = store_copy("load-533")
    apply_case(root, stores.cases("multidamage-load-533")["segment-name-minus"], "crash")
    (root / paths.CHECKPOINT).unlink()
    with Store.open(root, load_settings(settings_of("load-533"), root)) as store:
        outcome = predict(store, Version.parse("5.3.3")).outcome
    assert (outcome.max_phy_offset, outcome.min_phy_offset) == (-990538, -917504)
    assert outcome.commitlog_files == ("-0000000000000917504",)
    assert outcome.lost_messages == 2183
