"""Checks of real stores: nothing is found where nothing is wrong, and every recorded damage is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from store_core.check.store import CheckReport, check_store
from store_core.findings import Finding
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore

BASES: Final = ("load-533", "load-497", "crash-533")
# The killed store has one segment that was never used, and neither a full checkpoint nor progress of consumers.
OF_THE_BASE: Final = {"load-533": set[str](), "load-497": set[str](), "crash-533": {"L014"}}
REPLACES_THE_SPARE_SEGMENT: Final = {"log-removed", "log-extra-old-file", "log-full-then-old-file"}
ONLY_OF_A_STOPPED_STORE: Final = {"C003", "P001", "P006", "P007"}

# What each case does -> the codes that name it; what stands behind a colon holds for one base alone.
EXPECTED: Final = {
    "untouched": "",
    "flip-body-mid": "L001",
    "flip-body-last": "L001",
    "flip-props-mid": "; load-497: Q005",  # no checksum covers properties; here the bit is one of the tag's
    "flip-phyoffset-last": "L007",
    "zero-page-mid": "L002 L003 Q001 I001 I002; load-533: L002 L003 Q001 Q005 I001 I002; crash-533: L013 L002 L003 Q001 I001",
    "zero-page-last": "L002 L003 Q001 I001 I002; load-497: L013 L002 L003 Q001 I001; crash-533: L002 L003 Q001 I001 I002 I004",
    "size-plus-one-last": "L013 Q001 I001",
    "size-huge-mid": "L002 Q001 I001",
    "size-negative-last": "L002 Q001 I001",
    "size-zero-last": "L002 Q001 I001",
    "magic-first-mid": "L002 Q001 I001",
    "storetime-zero-first": "L019",
    "blank-mid-broken": "L002 L003",
    "torn-tail": "L004 Q011 I001 C003",
    "garbage-tail": "L004",
    "ghost-tail": "L005",
    "log-tail-lost": "Q011 I001 C003",
    "log-missing-mid": "L006 Q001 I001",
    "log-missing-first": "L026; load-533: L026 P007",
    "log-last-empty": "L009 L006 Q011 I001 C003",
    "log-last-short": "L009 L004 L006 Q011 I001 C003",
    "log-mid-short": "L009 L002 L006 Q001 I001",
    "log-stray-dir": "L010",
    "log-strange-name": "L010",
    "log-gap-name": "L006 L014",
    "log-removed": "S007",
    "log-extra-zero-file": "L014; crash-533: ",
    "log-extra-old-file": "L005",
    "log-full-then-old-file": "L005",
    "cq-last-short": "Q007 Q006",
    "cq-tail-lost": "Q006",
    "cq-all-tail-lost": "Q006 P001",
    "cq-hole": "Q008 Q006",
    "cq-hole-old": "Q008 Q006",
    "cq-foreign": "Q002 Q006",
    "cq-ghost-entries": "Q004",
    "cq-beyond-log": "Q011",
    "cq-tail-garbage": "Q009; load-533: Q009 Q011",
    "cq-queue-missing": "Q006 P006",
    "cq-removed": "Q006 P006 P007",
    "cq-removed-flip-mid": "L001 Q006 P006 P007",
    "checkpoint-ahead": "C003",
    "checkpoint-removed": "C001",
    "checkpoint-short": "C002",
    "index-last-removed": "I008",
    "index-short": "I005 I004",
    "index-stray": "I006",
    "index-wild": "I003 I001 I004",
}


def check(root: Path, **options: Any) -> CheckReport:
    with Store.open(root) as store:
        return check_store(store, **options)


def expected_codes(base: str, case: str) -> set[str]:
    common, *special = EXPECTED[case].split("; ")
    own = {name: codes for name, _, codes in (part.partition(":") for part in special)}
    codes = set(own.get(base, common).split())
    if base == "crash-533":
        codes = {code for code in codes if code not in ONLY_OF_A_STOPPED_STORE or case == "checkpoint-ahead"}
    return codes | (OF_THE_BASE[base] if case not in REPLACES_THE_SPARE_SEGMENT else set())


def severities(findings: list[Finding]) -> set[str]:
    return {finding.severity for finding in findings}


@pytest.mark.parametrize("name", stores.WITH_QUEUE_FILES)
def test_nothing_is_wrong_with_what_a_broker_left(golden: GoldenStore, name: str) -> None:
    report = check(golden(name))
    killed = {"L014": 1, "S001": 1}  # a segment made ahead, and ``abort``
    if name == "crash-497":
        killed["P009"] = 1  # killed before the delay service had first written where it was
    if name in ("crash-497", "pool-533", "crash-551", "crash-551-aged"):
        killed["C005"] = 1  # killed before the log was first flushed
    assert report.summary == (killed if name in stores.KILLED else {})
    assert severities(report.findings) == ({"info"} if name in stores.KILLED else set())


@pytest.mark.parametrize("name", stores.WITHOUT_QUEUE_FILES)
def test_queues_in_rocksdb_are_one_finding(name: str, golden: GoldenStore) -> None:
    report = check(golden(name))
    assert report.summary == {"P008": 1, "Q015": 1}
    assert [f.code for f in report.findings if f.severity != "info"] == ["Q015"]


@pytest.mark.product
@pytest.mark.parametrize(
    ("base", "case"), [(base, case) for base in BASES for case in EXPECTED if case in stores.cases(base)]
)
def test_each_damage_is_named(damaged: DamagedStore, base: str, case: str) -> None:
    clean = check(damaged(base, case, "clean"))
    assert set(clean.summary) == expected_codes(base, case)
    assert {f.code for f in clean.findings} == set(clean.summary)
    assert sum(clean.summary.values()) == len(clean.findings)
    crashed = check(damaged(base, case, "crash"))
    assert crashed.summary == {**clean.summary, "S001": 1}


@pytest.mark.parametrize("base", BASES)
def test_every_case_is_expected_here(base: str) -> None:
    surgery = {case for case in stores.cases(base) if f"{case}/clean" in stores.outcomes(base)}
    fillers = {
        case for case in surgery if stores.cases(base)[case]["name"].startswith(("mid-", "last-", "first-", "end-"))
    }
    others = surgery - fillers - {"whole-segment", "whole-segment-missing-blank", "min-91", "v2-filler"}
    assert others <= EXPECTED.keys()


def lost_entries(base: str, case: str) -> set[tuple[str, int, int]]:
    """Numbers of the messages whose bytes the case harms, from the truth and the case alone."""
    harmed = []
    sizes = int(stores.truth(base)["properties"]["mappedFileSizeCommitLog"])
    for op in stores.cases(base)[case]["ops"]:
        start = int(Path(op["path"]).name)
        if op["op"] == "remove":
            harmed.append((start, start + sizes))
        elif op["op"] == "truncate":
            harmed.append((start + op["size"], start + sizes))
        else:
            size = op.get("size") or len(op.get("hex", "00")) // 2
            harmed.append((start + op["at"], start + op["at"] + size))
    return {
        (m["topic"], m["queueId"], m["queueOffset"])
        for m in stores.truth(base)["messages"]
        if any(m["phyOffset"] < end and begin < m["phyOffset"] + m["storeSize"] for begin, end in harmed)
    }


def numbers(findings: Iterable[Finding], *codes: str) -> set[tuple[str, int, int]]:
    """All queue offsets that findings of some codes speak of."""
    found = set()
    for f in findings:
        if f.code in codes:
            assert f.topic is not None
            assert f.queue_id is not None
            assert f.queue_offset is not None
            assert f.size_bytes is not None
            found |= {(f.topic, f.queue_id, f.queue_offset + n) for n in range(f.size_bytes // 20)}
    return found


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "case",
    [
        "size-plus-one-last",
        "size-huge-mid",
        "size-negative-last",
        "size-zero-last",
        "magic-first-mid",
        "log-missing-mid",
        "log-mid-short",
        "log-last-empty",
        "log-last-short",
        "log-tail-lost",
        "torn-tail",
    ],
)
def test_exactly_the_lost_messages_have_dead_entries(damaged: DamagedStore, base: str, case: str) -> None:
    if case not in stores.cases(base):
        return
    report = check(damaged(base, case, "clean"))
    assert numbers(report.findings, "Q001", "Q011") == lost_entries(base, case)


@pytest.mark.parametrize("case", ["cq-hole", "cq-hole-old", "cq-tail-lost", "cq-foreign", "cq-all-tail-lost"])
def test_exactly_the_wiped_entries_are_missing(damaged: DamagedStore, case: str) -> None:
    report = check(damaged("load-533", case, "clean"))
    wiped = set()
    for op in stores.cases("load-533")[case]["ops"]:
        _, topic, queue_id, name = Path(op["path"]).parts
        first = (int(name) + op["at"]) // 20
        size = op.get("size") or max(len(op["hex"]) // 2, 20)
        wiped |= {(topic, int(queue_id), first + n) for n in range(size // 20)}
    missing = set()
    for f in report.findings:
        if f.code == "Q006":
            assert f.queue_offset is not None
            missing |= {(f.topic, f.queue_id, f.queue_offset + n) for n in range(int(f.message.split()[0]))}
    assert missing == wiped


@pytest.mark.parametrize("base", ["load-533", "load-497"])
@pytest.mark.parametrize("case", ["torn-tail", "garbage-tail", "log-tail-lost"])
def test_a_torn_tail_is_not_corruption(damaged: DamagedStore, base: str, case: str) -> None:
    assert severities(check(damaged(base, case, "crash")).findings) == {"info"}


def test_what_a_crash_did_not_dispatch_is_not_a_fault(damaged: DamagedStore) -> None:
    crashed = check(damaged("crash-533", "cq-all-tail-lost", "crash"))
    assert {f.severity for f in crashed.findings if f.code == "Q006"} == {"info"}
    stopped = check(damaged("crash-533", "cq-all-tail-lost", "clean"))
    assert {f.severity for f in stopped.findings if f.code == "Q006"} == {"error"}


def test_a_live_store_may_be_in_the_midst_of_a_write(damaged: DamagedStore) -> None:
    report = check(damaged("load-533", "torn-tail", "clean"), live=True)
    assert severities(report.findings) == {"info"}
    assert set(report.summary) == {"S002", "Q011", "I001"}


@pytest.mark.parametrize("base", ["load-533", "crash-533"])
def test_several_jobs_say_the_same(damaged: DamagedStore, base: str) -> None:
    root = damaged(base, "zero-page-mid")
    assert check(root, jobs=2) == check(root)


def test_checking_changes_nothing(damaged: DamagedStore, read_only: Callable[[Path], Path]) -> None:
    root = read_only(damaged("load-533", "cq-removed-flip-mid"))
    steps: list[int] = []
    with Store.open(root) as store:
        check_store(store, on_progress=steps.append)
        assert steps[-1] == store.log.size_bytes
    assert steps == sorted(steps)
