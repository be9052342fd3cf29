"""However many segments a plan makes anew, the log as it will be is laid out as often as for one."""

from __future__ import annotations

import pytest

from store_core.recovery import log_edits as mended
from store_core.recovery.plans.plan import Op
from store_core.storage.overlay import overlaid
from tests.recovery.recovering import DamageableOf, Opener


def test_making_many_segments_takes_no_more_views_than_making_one(
    damageable: DamageableOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[int] = []

    def counted(*args: object) -> object:
        views[-1] += 1
        return overlaid(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(mended, "overlaid", counted)
    for lost in ([2], [2, 3], [2, 3, 4, 5]):
        store = damageable("load-533")
        for path in [store.segments[number] for number in lost]:
            path.unlink()
        views.append(0)
        plan = Opener(None, "5.3.3").recover(store.root).plan
        assert plan is not None
        assert sum(step.op is Op.CREATE_FILE and "commitlog" in step.path for step in plan.steps) == len(lost)
    assert len(set(views)) == 1
