"""Every combination of exit, checkpoint, queues and log, mended by recover and then started by real store code of several releases.

    python -m tests.broker.mended_product                            the whole product; half an hour on two cores
    python -m tests.broker.mended_product --releases 5.3.3 --sample 50 --seed 7
    python -m tests.broker.mended_product --piles 200 --seed 7       several harms of all kinds at once

Exits with 1 where a release does with a mended store anything but serve all that could be read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from store_core.check.log_begin import MISSING_BEGIN
from store_core.findings import Finding
from store_core.layout import paths
from store_core.recovery.apply.undo import list_undo, undo
from store_core.recovery.rebuild import rebuild
from store_core.recovery.recover import Recovery
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.broker.outcomes import BATCH_COLUMNS
from tests.broker.product import START_MS, Damage, Draw, GoldenCopies, Opened, opened, parser_of, runs_of
from tests.broker.verdict import STARTS, differences, ending_of
from tests.conftest import differences as changed_paths
from tests.recovery.recovering import Harm, Opener, apply_to, is_queued, log_bytes, mended, place, places, record_bytes

Snapshot = dict[str, stores.Entry]
# What nothing mends, so that it may stand before and after: a wrong property checksum, a record without a store time, a missing begin.
_NOT_MENDED: Final = ("L011", "L019", "L026")
_TOPICS: Final = "P002"  # recover leaves topics.json to `rebuild topics`
_TREES: Final = (paths.COMMITLOG, paths.CONSUMEQUEUE, paths.INDEX, paths.BATCHCONSUMEQUEUE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A mended store as one release took it.

    ``wrong``: what is not as it must be. ``readable``: messages that the damage had left; ``stood_for``: those that something stands
    for; ``given_up``: readable ones that had to go.
    """

    version: str
    base: str
    cell: Damage
    readable: int
    stood_for: int
    given_up: int
    wrong: dict[str, Any]


def judge(version: str, base: str, draws: Iterable[tuple[Damage, int]], *, folder: Path) -> Iterator[Verdict]:
    """As ``judge_all``, cells of one golden store, without check and undo."""
    yield from judge_all(version, ((base, *draw) for draw in draws), folder=folder)


def judge_all(
    version: str, draws: Iterable[Draw], *, folder: Path, is_undone: bool = False, start_ms: int = START_MS
) -> Iterator[Verdict]:
    """Mend each cell's store for a release, as ``recover --apply`` does, and look at what the release makes of it.

    ``is_undone``: a check of the mended store has to be quiet, too, and undos to bring back every byte.
    """
    golden = GoldenCopies(folder)

    def prepare(base: str, root: Path) -> tuple[Opener, Recovery, Harm, Snapshot]:
        config = root.parent / f"{base}.properties"
        config.write_text(stores.properties_text(base))
        opener, before = Opener(config, version), stores.snapshot(root)
        return (opener, *mended(golden(base), root, base, opener), before)

    for each in opened(version, draws, folder=folder, prepare=prepare, start_ms=start_ms):
        opener, recovery, left, before = each.prepared
        wrong = dict(_wrong(version, each.base, each, recovery, left))
        if is_undone:
            wrong |= wrong_when_undone(each.root, opener, before)
        stood_for, given_up = (sum(run.messages or 0 for run in runs) for runs in (recovery.lost, recovery.given_up))
        yield Verdict(version, each.base, each.cell, len(left.intact), stood_for, given_up, wrong)


def wrong_when_undone(root: Path, opener: Opener, before: Snapshot) -> dict[str, Any]:
    """What a check of a mended store still tells, but for what nothing mends, and what is not as it was before once all is undone."""
    found = _told(root, opener)
    if any(each.code == _TOPICS for each in found):
        with Store.open(root, load_settings(opener.config, root)) as store:
            apply_to(rebuild(store, "topics"), root)
        found = _told(root, opener)
    for change in list_undo(root):
        undo(root, change.id, apply=True)
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(paths.OURS)}
    changed = [path for path in changed_paths(before, now) if path != "."]
    if found and {each.code for each in found} <= {*_NOT_MENDED}:
        stood = {_what(each) for each in _told(root, opener)}
        found = [each for each in found if _what(each) not in stood]
    told = [(each.code, each.message, each.file) for each in found]
    return {what: there for what, there in (("check", told), ("not undone", changed)) if there}


def _told(root: Path, opener: Opener) -> list[Finding]:
    return [found for found in opener.check(root) if found.severity != "info"]


def _what(found: Finding) -> tuple[str, int | None]:
    """A finding by its place; a begin may be missing farther when a segment that could not be read has gone."""
    return found.code, None if found.code == MISSING_BEGIN else found.phy_offset


def _wrong(version: str, base: str, each: Opened, recovery: Recovery, left: Harm) -> Iterator[tuple[str, Any]]:
    """What -> what there is instead, for all that must be."""
    found = differences(each.root, each.golden, base, None, each.told, version)
    yield from ((f"predicted: {what}", pair) for what, pair in found.items())
    if ending_of(each.told) != STARTS:
        yield "starts", ending_of(each.told)
        return
    if gone := [path for path in each.told["deleted"] if path.startswith(_TREES)]:
        yield "files deleted", gone
    queues = each.told["afterStart"]["queues"]
    spans = {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in queues if q["max"] > 0}
    after = {(t, n): (s.min_offset, s.max_offset) for t, q in recovery.after.queues.items() for n, s in q.items()}
    if spans != after:
        yield (
            "spans",
            {key: (spans.get(key), after.get(key)) for key in spans | after if spans.get(key) != after.get(key)},
        )
    ends = {(q["topic"], q["queueId"]): q["max"] for q in stores.truth(base)["afterLoad"]["queues"]}
    if too_far := {key: (span, ends.get(key)) for key, span in spans.items() if span[1] > ends.get(key, 0)}:
        yield "queues beyond their last message", too_far
    served = {(q["topic"], q["queueId"]): Counter(map(tuple, q["served"])) for q in queues}
    counts = {tuple(e[1:3]): e[4] for q in queues for e in q.get("entries", []) if len(e) == BATCH_COLUMNS}
    silent = {
        key: high - low - sum(times * counts.get(record, 1) for record, times in served[key].items())
        for key, (low, high) in spans.items()
    }
    if any(silent.values()):
        yield "numbers without a message", {key: count for key, count in silent.items() if count}
    entries = {(q["topic"], q["queueId"], entry[0]): tuple(entry[1:3]) for q in queues for entry in q["entries"]}
    gone = places(recovery.given_up)
    log, golden = log_bytes(each.root), log_bytes(each.golden)
    size = int(stores.truth(base)["properties"]["mappedFileSizeCommitLog"])
    repaired = {repair["phy_offset"] for repair in recovery.repaired}  # what no checksum looks at may differ
    lost = []
    for message in left.intact:
        topic, queue_id, _ = place(message)
        record = message["phyOffset"], message["storeSize"]
        is_served = entries.get(place(message)) == record and served[topic, queue_id][record] == 1
        is_same = message["phyOffset"] in repaired or record_bytes(log, message, size) == record_bytes(
            golden, message, size
        )
        if place(message) not in gone and not (is_same and (is_served or not is_queued(message))):
            lost.append(place(message))
    if lost:
        yield "messages lost or elsewhere", (len(lost), lost[:5])


def main() -> int:
    told = parser_of("mended_product", __doc__).parse_args()
    verdicts: list[Verdict] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mended-") as folder:
        for version, base, draws in runs_of(told):
            for verdict in judge(version, base, draws, folder=Path(folder)):
                verdicts.append(verdict)
                for what, there in verdict.wrong.items():
                    print(f"{version} on {base}: {verdict.cell}: {what}: {there}", flush=True)
            wrong = sum(bool(v.wrong) for v in verdicts if (v.version, v.base) == (version, base))
            print(f"{version} on {base}: {len(draws) - wrong} of {len(draws)} are whole", flush=True)
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    print(f"{len(verdicts) - wrong} of {len(verdicts)} are whole, seed {told.seed}, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
