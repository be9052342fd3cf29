"""Wrong store times in batch queues and ConsumeQueueExt units: told, and made right, so that look-ups by time are."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import pytest

from store_core.layout import paths, queue
from store_core.layout.schema import Layout
from store_core.read.queue import BatchQueue
from store_core.read.time_lookup import offset_by_time
from store_core.recovery.rebuild import rebuild
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.recovery.recovering import Opener, apply_to

WRONG: Final = 17
CASES: Final = (
    ("bcq-533", paths.BATCHCONSUMEQUEUE, queue.BATCH_ENTRY),
    ("cqext-533", paths.CONSUMEQUEUE_EXT, queue.EXT_UNIT),
    ("cqext-497", paths.CONSUMEQUEUE_EXT, queue.EXT_UNIT),
)


def queue_files(root: Path) -> dict[str, str]:
    trees = (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.CONSUMEQUEUE_EXT)
    return {p: e.sha256 for p, e in stores.snapshot(root).items() if e.sha256 and p.split("/")[0] in trees}


def set_back(root: Path, tree: str, layout: Layout) -> None:
    """Turn the clock back by an hour in the first entries of the fullest file that hold anything."""
    path = max((p for p in (root / tree).rglob("*") if p.is_file()), key=lambda p: len(p.read_bytes().rstrip(b"\0")))
    data = bytearray(path.read_bytes())
    at = layout.offset_of("store_timestamp_ms")
    stored = layout.field_struct("store_timestamp_ms")
    for number in range(WRONG):
        place = number * layout.size_bytes + at
        (time_ms,) = stored.unpack_from(data, place)
        assert time_ms > 0
        stored.pack_into(data, place, time_ms - 3_600_000)
    path.write_bytes(data)


@pytest.mark.parametrize("mend", ["recover", "rebuild"])
@pytest.mark.parametrize(("name", "tree", "layout"), CASES)
def test_wrong_store_times_are_told_and_mended(
    name: str,
    tree: str,
    layout: Layout,
    mend: Literal["recover", "rebuild"],
    store_copy: StoreCopy,
    golden: GoldenStore,
) -> None:
    root, opener = store_copy(name), Opener(None, stores.truth(name)["written_by"])
    set_back(root, tree, layout)
    before = queue_files(root)
    assert before != queue_files(golden(name))
    found = [finding for finding in opener.check(root) if finding.severity != "info"]
    assert {finding.code for finding in found} == {"Q021"}
    assert {finding.message.split()[0] for finding in found} == {str(WRONG)}
    with Store.open(root, load_settings(None, root, broker_version=opener.version)) as store:
        planned = opener.recover(root) if mend == "recover" else rebuild(store, "queues")
    apply_to(planned, root)
    assert queue_files(root) == queue_files(golden(name))
    assert opener.check(root) == []


def test_a_look_up_by_time_finds_again_what_it_should(store_copy: StoreCopy, golden: GoldenStore) -> None:
    root, opener = store_copy("bcq-533"), Opener(None, "5.3.3")

    def looked_up(root: Path) -> dict[object, int]:
        with Store.open(root) as store:
            found = {}
            for key, files in store.batch_queues.items():
                batch = BatchQueue(files, store.log)
                for message in stores.truth("bcq-533")["messages"]:
                    time_ms = message["storeTimestamp"]
                    found[key, time_ms] = offset_by_time(batch, time_ms, "lower")
            return found

    right = looked_up(golden("bcq-533"))
    set_back(root, paths.BATCHCONSUMEQUEUE, queue.BATCH_ENTRY)
    assert looked_up(root) != right
    apply_to(opener.recover(root), root)
    assert looked_up(root) == right
