"""Reading a store that rmqctl itself has changed by half: it was killed on its way, or is still at work."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from rmqctl import exit_codes
from store_core.layout import paths
from tests import stores
from tests.conftest import DamagedStore, differences
from tests.refusing import call_without_privileges, forbidden
from tests.rmqctl.calls import call
from tests.rmqctl.stopping import stopped

RECOVER: Final = ("recover", "--apply", "--yes")
TOPIC: Final = "Calm_orders"
READERS: Final = (
    ("check",),
    ("checkpoint",),
    ("dump-cq", TOPIC, "0"),
    ("dump-index",),
    ("info",),
    ("lag",),
    ("log",),
    ("pull", TOPIC, "0"),
    ("query-key", TOPIC, "no such key"),
    ("rebuild", "all"),
    ("recover",),
    ("sql", "select count(*) from messages"),
    ("tail",),
    ("trace", "no such key"),
    ("verify-crc",),
)
FIRST: Final = "store_core.recovery.apply.execute:Change.forward"
LAST: Final = "store_core.recovery.apply.execute:Change._sync_folders"
PREPARING: Final = "store_core.recovery.apply.prepare:Preparation.run"
TOLD: Final = "what is read may be half changed"


@pytest.fixture
def sample(damaged: DamagedStore) -> Path:
    return damaged("load-533", "flip-body-mid", "crash")


def without_ours(root: Path) -> dict[str, stores.Entry]:
    return {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(paths.OURS)}


@pytest.mark.product(1)
@pytest.mark.parametrize("moment", [FIRST, LAST], ids=["nothing is changed yet", "all is changed"])
def test_all_that_reads_says_that_a_change_is_unfinished(moment: str, sample: Path, tmp_path: Path) -> None:
    before = stores.snapshot(sample)
    with stopped(moment, *RECOVER, "-s", sample):
        found = call("check", "-s", sample, "-o", "json")
        assert f"another process is at work on this store: {TOLD}" in found.err
        assert "is unfinished, and another process is at work" in str(found.json["findings"])
    meanwhile = stores.snapshot(sample)
    for words in (*READERS, ("export", tmp_path / "out")):
        told = call(*words, "-s", sample)
        assert told.code in (exit_codes.OK, exit_codes.FINDINGS), told.err
        assert told.err.count(TOLD) == 1, told.err
        assert TOLD not in call(*words, "-s", sample, "-q").err
    assert differences(meanwhile, stores.snapshot(sample)) == []
    assert call("undo", "--apply", "-s", sample).code == exit_codes.OK
    assert differences(before, without_ours(sample)) == []


def test_nothing_is_said_of_a_change_that_has_not_begun(sample: Path) -> None:
    with stopped(PREPARING, *RECOVER, "-s", sample):
        pass
    assert [call(*words, "-s", sample).err for words in (("info",), ("recover",))] == ["", ""]
    found = call("check", "-s", sample, "-o", "json")
    assert [f["message"] for f in found.json["findings"] if f["code"] == "S004"] == [
        f"the change {next((sample / '.rmqctl/undo').iterdir()).name} was interrupted"
    ]


def test_a_journal_that_tells_nothing_stops_no_reader(sample: Path) -> None:
    assert call(*RECOVER, "-s", sample).code == exit_codes.OK
    [journal] = sample.glob(".rmqctl/undo/*/journal")
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    told = call("pull", TOPIC, "0", "-s", sample)
    assert told.code == exit_codes.OK
    assert "was interrupted: the undo journal is damaged" in told.err
    found = call("check", "-s", sample, "-o", "json")
    assert found.code == exit_codes.FINDINGS
    assert [f["file"] for f in found.json["findings"] if f["code"] == "S004"] == [
        str(journal.parent.relative_to(sample))
    ]
    data[40] ^= 1
    journal.write_bytes(data)


def test_who_may_not_look_at_the_journals_may_read_the_store(sample: Path) -> None:
    assert call(*RECOVER, "-s", sample).code == exit_codes.OK
    with forbidden(sample / ".rmqctl"):
        told = call_without_privileges("info", "-s", sample)
        assert (told.code, "it is not known whether a change" in told.err) == (exit_codes.OK, True)
        found = call_without_privileges("check", "-s", sample, "-o", "json")
        assert [f["file"] for f in found.json["findings"] if f["code"] == "S004"] == [".rmqctl/undo"]
