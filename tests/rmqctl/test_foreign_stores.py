"""Stores of a kind that rmqctl does not write to, queues in RocksDB and logs kept by DLedger: writing is refused, the log is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rmqctl import exit_codes
from tests import stores
from tests.conftest import StoreCopy
from tests.rmqctl.calls import call

# Words that would write, as a dry run too where there is one.
WRITING: Final = (
    ("recover",),
    ("recover", "--policy", "broker", "--apply", "--yes"),
    ("truncate", "0", "--apply"),
    ("rebuild", "all"),
    ("put", "Calm_orders", "x"),
)
KINDS: Final = {
    "rocksdb": ("rocks-533", "RocksDB"),
    "dledger": ("load-533", "DLedger"),
    "dledger, told by the configuration": ("load-533", "DLedger"),
}


@pytest.fixture(params=KINDS)
def foreign(
    request: pytest.FixtureRequest, store_copy: StoreCopy, tmp_path: Path
) -> tuple[str, str, tuple[object, ...]]:
    """Golden name, the word that must be said, and the options that name the store."""
    name, word = KINDS[request.param]
    root = store_copy(name)
    options: tuple[object, ...] = ("-s", root)
    if request.param == "dledger":
        (root / "dledger-n0" / "data").mkdir(parents=True)
    elif "configuration" in request.param:
        config = tmp_path / "broker.conf"
        config.write_text(stores.properties_text(name) + "enableDLegerCommitLog=true\n")
        options += ("-c", config)
    return name, word, options


def test_writing_is_refused(foreign: tuple[str, str, tuple[object, ...]], read_only: Callable[[Path], Path]) -> None:
    _, word, options = foreign
    read_only(Path(str(options[1])))
    for words in WRITING:
        result = call(*words, *options, "-o", "json")
        assert (result.code, result.json["error"]["code"]) == (exit_codes.FAILED, "failed"), (words, result.out)
        assert word in result.err, words


def test_the_log_is_read(foreign: tuple[str, str, tuple[object, ...]]) -> None:
    name, _, options = foreign
    messages = stores.truth(name)["messages"]
    first = messages[0]["phyOffset"]
    verified = call("verify-crc", *options, "-o", "json")
    assert (verified.code, verified.json["stores"][0]["records"]) == (exit_codes.OK, len(messages))
    logged = call("log", *options, "--max", "5", "-o", "ndjson")
    assert [row["phy_offset"] for row in logged.lines] == [m["phyOffset"] for m in messages[:5]]
    assert call("get", first, *options, "-o", "json").json["phy_offset"] == first
