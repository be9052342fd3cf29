"""verify-crc of a log of which the system refuses to read a part: it is told, and all the rest is looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest

from store_core.check.verify import verify_log
from store_core.kernel import KERNEL_VARIABLE
from store_core.storage.store import Store
from tests.damage import Damageable
from tests.refusing import BAD, PAGE_BYTES, SEGMENT, call_without_privileges, failing_disk, forbidden

DamageableOf = Callable[..., Damageable]
_JOBS: Final = (1, 2)


@pytest.fixture
def store(damageable: DamageableOf) -> Damageable:
    return damageable("load-533")


@pytest.mark.parametrize("jobs", _JOBS)
@pytest.mark.parametrize("which", BAD)
def test_what_a_disk_refuses_is_gone_around(
    store: Damageable, which: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, "python")  # whose reads can be made to fail
    with Store.open(store.root) as opened:
        whole = verify_log(opened)
        segment = opened.log.segments[SEGMENT]
        with failing_disk(segment.path, BAD[which]):
            report = verify_log(opened, jobs=jobs)
    bad = [(segment.phy_offset + start, segment.phy_offset + end) for start, end in BAD[which]]
    assert {found.code for found in report.findings} == {"L021"}
    told = [(found.phy_offset, found.phy_offset + found.size_bytes) for found in report.findings]
    assert len(told) == len(bad)
    for (start, end), (first, last) in zip(bad, told, strict=True):
        # From the record that cannot be read whole to the end of the last one, in the file at most.
        assert segment.phy_offset <= first <= start
        assert end <= last <= segment.end_phy_offset
        assert last - first <= end - start + 4 * PAGE_BYTES
    places = [(one["phyOffset"], one["phyOffset"] + one["storeSize"]) for one in store.truth["messages"]]
    lost = [at for at, behind in places if any(at < last and first < behind for first, last in told)]
    assert report.records == whole.records - len(lost)
    assert sum(found.size_bytes for found in report.findings) + report.size_bytes == whole.size_bytes


def test_a_file_without_permission_is_a_finding(store: Damageable) -> None:
    with forbidden(store.segments[SEGMENT]):
        result = call_without_privileges("verify-crc", "-s", store.root, "-o", "json")
    assert result.code == 3
    [told] = json.loads(result.out)["stores"]
    assert [found["code"] for found in told["findings"]] == ["L021"]
    assert told["findings"][0]["size_bytes"] == store.segments[SEGMENT].stat().st_size
    assert "permission denied" in told["findings"][0]["message"]
