"""How long new queue and index files are, where the old ones do not tell for sure."""

from __future__ import annotations

import shutil

import pytest

from store_core.layout import paths
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.recovery.recovering import Opener, apply_to
from tests.recovery.siblings import with_siblings


@pytest.mark.leaves_damage("the broker is configured for files of another length")
@pytest.mark.parametrize(("size_bytes", "becomes"), [(8096, 4000), (8000, 8000)])
def test_one_long_queue_file_of_two_decides_nothing_in_silence(
    size_bytes: int, becomes: int, store_copy: StoreCopy
) -> None:
    """Entries are whole in a file; where one size is as good as another, that is told, also beside what was done."""
    root = store_copy("bcq-533")
    folder = root / paths.CONSUMEQUEUE / "Bcq_plain"
    with (folder / "1" / paths.segment_name(0)).open("r+b") as file:
        file.truncate(size_bytes)
    opener = Opener(None, "5.3.3")
    recovery = opener.recover(root)
    is_assumed = becomes == size_bytes
    assert ("S009" in [found.code for found in recovery.findings]) is is_assumed
    assert any("of 4000 and of 8000 bytes are equally many: 8000" in note for note in recovery.notes) is is_assumed
    apply_to(recovery, root)
    assert {path.stat().st_size for path in folder.rglob("0*0")} == {becomes}
    assert opener.recover(root).plan.steps == ()


@pytest.mark.parametrize("base", ["load-533", "bcq-533"])
def test_new_files_are_as_long_as_those_of_a_copy(base: str, store_copy: StoreCopy, golden: GoldenStore) -> None:
    """Where all are lost and no configuration is at hand: brokers refuse files of another length."""
    root, opener = store_copy(base), Opener(None, stores.truth(base)["written_by"])
    for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE, paths.INDEX):
        shutil.rmtree(root / tree, ignore_errors=True)
    assert {"S005", "S009"} & {found.code for found in opener.recover(root).findings}
    options = with_siblings(golden(base))
    recovery = opener.recover(root, options=options)
    assert {"S005", "S009"}.isdisjoint(found.code for found in recovery.findings)
    assert "mappedFileSizeConsumeQueue=" in recovery.notes[-1]
    apply_to(recovery, root)
    wanted, found = stores.snapshot(golden(base)), stores.snapshot(root)
    for tree in (paths.CONSUMEQUEUE, paths.BATCHCONSUMEQUEUE):
        files = {path: entry for path, entry in wanted.items() if path.startswith(f"{tree}/")}
        assert [path for path in files if path not in found or found[path].sha256 != files[path].sha256] == []
    assert {p.stat().st_size for p in (root / paths.INDEX).iterdir()} == {
        p.stat().st_size for p in (golden(base) / paths.INDEX).iterdir()
    }
    assert opener.recover(root, options=options).plan.steps == ()
    assert opener.recover(root).plan.steps == ()
