"""Records of a few KB that hold a lot: every command answers, and none needs the memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rmqctl import exit_codes
from store_core.codec.compression import DEFAULT_LIMIT_BYTES, compress
from store_core.engine.live_store import WriteOptions, open_for_writing
from store_core.engine.message import NewMessage
from store_core.engine.put import put
from store_core.engine.record import Stored
from store_core.storage.settings import load_settings
from tests.rmqctl.calls import call

_SIZES: Final = {"mappedFileSizeCommitLog": str(2 << 20), "mappedFileSizeConsumeQueue": "4000"} | {
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
_SHOWN_BYTES: Final = 3 << 20
_HUGE_BYTES: Final = 64 << 20
MakeStore = Callable[..., tuple[Path, Stored]]


@pytest.fixture
def store_of(tmp_path: Path) -> MakeStore:
    """``store_of(body, kind)``: a store whose last message holds this body compressed, and where that is."""

    def made(body: bytes, kind: str) -> tuple[Path, Stored]:
        (tmp_path / "commitlog").mkdir()
        stored, flags = compress(body, kind)
        settings = load_settings(root=tmp_path, broker_version="5.3.3", values=_SIZES)
        with open_for_writing(settings, WriteOptions(flush="async")) as live:
            put(live, NewMessage("orders", b"small", 0), create_topic=True)
            result = put(live, NewMessage("orders", stored, 0, {"KEYS": "large"}, sys_flag=flags))
        assert result.stored is not None
        return tmp_path, result.stored

    return made


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_large_body_is_shown_whole_as_data(store_of: MakeStore, kind: str) -> None:
    text = ('"große"\n\0' * (_SHOWN_BYTES // 10))[:_SHOWN_BYTES]
    root, stored = store_of(text.encode(), kind)
    one = ("get", stored.phy_offset, "-s", root, "-o")
    for found in (
        call(*one, "json").json,
        *call(*one, "ndjson").lines,
        *call("pull", "orders", 0, "--offset", 1, "-s", root, "-o", "json").json["messages"],
        *call("tail", "-n", 1, "-s", root).lines,
        *call("log", "--from", stored.phy_offset, "-s", root, "-o", "json").json["messages"],
        *call("query-key", "orders", "large", "-s", root, "-o", "json").json["messages"],
    ):
        assert found["body"] == text
        assert (found["body_encoding"], found["compression"], found["crc"]) == ("utf-8", kind, "ok")
    csv.field_size_limit(1 << 30)
    [row] = csv.DictReader(io.StringIO(call(*one, "csv").out, newline=""))
    assert (row["body"], row["topic"], row["queue_offset"]) == (text, "orders", "1")


@pytest.mark.parametrize("output", ["plain", "table", "github"])
def test_people_get_the_begin_of_a_large_body(store_of: MakeStore, output: str) -> None:
    root, stored = store_of(b"x" * _SHOWN_BYTES, "zlib")
    result = call("get", stored.phy_offset, "-s", root, "-o", output)
    assert result.code == exit_codes.OK
    assert result.err == (
        f"note: the body has {_SHOWN_BYTES} bytes and is cut after 65536 characters; -o json shows it all\n"
    )
    assert result.out.count("x") == 1 << 16
    assert "x…" in result.out


def test_what_inflates_beyond_the_limit_comes_as_stored(store_of: MakeStore) -> None:
    root, stored = store_of(bytes(DEFAULT_LIMIT_BYTES + 1), "zstd")
    result = call("get", stored.phy_offset, "-s", root, "-o", "json")
    assert result.code == exit_codes.FINDINGS
    assert result.json["body_encoding"] == "base64"
    assert f"L012 the body is given as stored: the plain body is larger than {DEFAULT_LIMIT_BYTES} bytes" in result.err


_MEASURED: Final = """
import sys
from rmqctl.app import main
code = main(sys.argv[1:])
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(f"peak_kib {peak}", file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.product(2)
@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_no_command_needs_the_memory_of_a_large_body(store_of: MakeStore, kind: str) -> None:
    root, stored = store_of(b"\xff" * _HUGE_BYTES, kind)
    commands: list[tuple[tuple[object, ...], int]] = [
        (("get", stored.phy_offset, "-o", "json"), 80),
        (("get", stored.phy_offset, "-o", "plain"), 80),
        (("get", stored.phy_offset, "--no-body", "-o", "json"), 32),
        (("pull", "orders", 0, "-o", "csv"), 80),
        (("tail", "-n", 1, "-o", "table"), 100),
        (("log", "-o", "plain"), 100),
        (("log", "--no-body", "-o", "json"), 64),
    ]
    for arguments, most_mib in commands:
        result = call("-s", root, *arguments, program=("-c", _MEASURED))
        assert result.code == exit_codes.OK, result.err
        peak_kib = int(result.err.split("peak_kib ")[1])
        assert peak_kib < most_mib << 10, arguments
