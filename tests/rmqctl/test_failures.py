"""Whatever goes wrong: one line on stderr, the right exit code, a closed document, never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqctl import exit_codes
from rmqctl.app import main
from rmqctl.context import exit_for_findings
from rmqctl.failures import failure_of
from store_core import errors
from store_core.findings import finding
from store_core.storage.files import NO_FILE
from tests.conftest import StoreCopy
from tests.rmqctl.calls import ARTIFICIAL, ROOT, Result, artificial, call, command, environment, on_terminal

CRASHES = [
    ("memory", "out of memory: free some memory, or give --jobs 1"),
    ("recursion", "something is nested too deeply to be read"),
    ("denied", "permission denied (/data/x): run it as the user who owns the store"),
    ("full", "no space left on device (/data/x): free some space, then run it again"),
    ("folder", "is a directory (/data/x): name a file, not a folder"),
    ("socket", "broken pipe"),
]


def one_line(result: Result, code: int) -> str:
    assert result.code == code
    assert result.err.count("\n") == 1
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    return result.err.removeprefix("error: ").removesuffix("\n")


@pytest.mark.parametrize(("kind", "line"), CRASHES)
def test_what_the_machine_refuses(kind: str, line: str) -> None:
    assert one_line(artificial("crash", kind), 1) == line
    told = artificial("crash", kind, "-o", "json")
    assert one_line(told, 1) == line
    assert told.json["error"]["code"] == "failed"
    assert set(told.json["error"]) == {"code", "message", "path", "phy_offset"}
    assert told.json["error"]["path"] == ("/data/x" if "/data/x" in line else None)


def test_a_bug_is_one_line_and_a_traceback_only_on_demand() -> None:
    line = one_line(artificial("crash", "bug"), 1)
    assert line.startswith("internal error: KeyError: ")
    assert line.endswith(": please report it; run with RMQCTL_DEBUG=1 to see the traceback")
    assert "(artificial.py:" in line
    assert artificial("crash", "bug", "-o", "ndjson").lines[0]["error"]["code"] == "internal"
    shown = artificial("crash", "bug", RMQCTL_DEBUG="1")
    assert "Traceback (most recent call last)" in shown.err
    assert shown.err.splitlines()[-1].startswith("error: internal error: KeyError")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["explian"], "no such command 'explian': did you mean 'explain'? Or see `rmqctl --help`"),
        (["zzz"], "no such command 'zzz': see `rmqctl --help`"),
        (["checkpoint", "--outptu", "json"], "no such option '--outptu': did you mean --output? Or see `rmqctl checkpoint --help`"),
        (["checkpoint", "-X"], "no such option '-X': see `rmqctl checkpoint --help`"),
        (["log", "--from", "abc"], "invalid value 'abc' for --from: expected a whole number from 0 on"),
        (["log", "--max", "0"], "invalid value '0' for --max: expected a whole number from 1 on"),
        (["pull", "T", "xx"], "invalid value 'xx' for QUEUE_ID: expected a whole number from 0 on"),
        (["verify-crc", "--max-seconds", "x"], "invalid value 'x' for --max-seconds: expected a number from 0 on"),
        (["info", "-o", "foo"], "invalid value 'foo' for -o: expected one of table, plain, json, ndjson, csv, tsv, github, parquet, arrow"),
        (["info", "-c", "/nope"], "cannot read the configuration: No such file or directory (/nope): name the broker's properties file with -c"),
        (["get", "zz", "-s", "sample_store"], "'zz' is no message id: give an offset in the log, 32 or 56 hex digits, or a unique key with --topic"),
        (["apply", "pyproject.toml", "-s", "sample_store"], "not a plan (pyproject.toml): name a file made with --save"),
        (["-q"], "missing command: see `rmqctl --help`"),
        (["checkpoint", "too", "many"], "got unexpected extra argument(s) (too many): see `rmqctl checkpoint --help`"),
        (["checkpoint", "-s"], "option '-s' requires an argument: see `rmqctl --help`"),
        (["--tz", "Mars", "checkpoint"], "unknown time zone 'Mars': give UTC, local, an offset such as +08:00, or a name such as Asia/Shanghai"),
        (["\x1b[2J\n"], r"no such command '\x1b[2J\n': see `rmqctl --help`"),
    ],
)  # fmt: skip
def test_wrong_usage(words: list[str], line: str) -> None:
    assert one_line(call(*words), 2) == line


@pytest.mark.parametrize("output", [["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]])
def test_wrong_usage_is_a_document_for_scripts(output: list[str]) -> None:
    for result in (call(*output, "zzz"), call("checkpoint", "--bogus", *output)):
        assert result.code == 2
        assert list(result.json) == ["error"]
        assert result.json["error"]["code"] == "usage"
        assert one_line(result, 2).startswith("no such ")
    assert call("checkpoint", "--bogus", "--", *output).out == ""
    assert call("zzz", "-o", "ndjson").lines[0]["error"]["code"] == "usage"
    assert call("zzz", "-o", "xml").out == ""


def test_a_failure_while_rows_are_written() -> None:
    rows = [{"queue_offset": n, "size_bytes": n * 1024, "store_timestamp_ms": n, "body": f"x{n}"} for n in range(2)]
    error = {"code": "failed", "message": "the disk is gone: plug it in", "path": "/dev/x", "phy_offset": 99}
    line = "the disk is gone (/dev/x): plug it in"
    document = artificial("midway", "-o", "json")
    assert list(document.json) == ["topic", "stores", "error"]
    assert document.json == {"topic": "T", "stores": [{"name": "s", "messages": rows}], "error": error}
    lines = artificial("midway", "-o", "ndjson")
    assert lines.lines == [*rows, {"error": error}]
    table = artificial("midway", "-o", "csv")
    assert len(table.out.splitlines()) == 3
    for result in (document, lines, table, artificial("midway", "-o", "plain"), artificial("midway", "-o", "table")):
        assert one_line(result, 1) == line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("w"), 2),
        (errors.NotAStoreError("w"), 10),
        (errors.StoreInUseError("w"), 11),
        (errors.PlanOutOfDateError("w"), 12),
        (errors.FailedError("w"), 1),
        (errors.StoreError("w"), 1),
        (KeyboardInterrupt(), 130),
        (ValueError("w"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert failure_of(error).exit_code == code


def test_every_error_of_the_tree_has_an_exit_code() -> None:
    assert {kind.code for kind in errors.StoreError.__subclasses__()} == set(exit_codes.BY_ERROR_CODE)


def test_exit_for_findings() -> None:
    info, warning, error = finding("S001", "m"), finding("C001", "m"), finding("L001", "m")
    assert [exit_for_findings(f) for f in ([], [info], [info, warning], [error], iter([info]))] == [0, 0, 3, 3, 0]


def test_a_commands_own_exit_code_counts() -> None:
    assert artificial("crash", "exit").code == 3


@pytest.mark.parametrize("output", ["ndjson", "json", "csv", "plain", "table", "github"])
def test_a_reader_that_leaves_ends_it_quietly(output: str) -> None:
    words = " ".join(command("flood", "-o", output, program=ARTIFICIAL))
    script = f"set -o pipefail; {words} | head -n 3"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment(), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 3


def test_a_reader_that_was_never_there() -> None:
    words = " ".join(command("checkpoint", "-s", ROOT / "sample_store"))
    script = f"set -o pipefail; (sleep 0.5; {words}) | true"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment(), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def onto_full_disk(*words: object) -> Result:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*words), cwd=ROOT, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    return Result(done.returncode, "", done.stderr)


@pytest.mark.parametrize("words", ["explain -o json", "get 0", "log", "log -o json", "log -o csv", "log -o plain"])
def test_a_full_disk_behind_stdout(words: str) -> None:
    """Whether the buffer is full or the program at its end, the same words."""
    done = onto_full_disk(*words.split(), "-s", ROOT / "sample_store")
    assert done.code == 1
    assert done.err == "error: cannot write the result: No space left on device: check where stdout goes\n"


def test_a_message_that_is_stored_although_nobody_can_be_told(store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    done = onto_full_disk("put", "Calm_orders", "x", "-s", root, "-o", "json")
    note, error = done.err.splitlines()
    at = int(re.search(r"stored, at (\d+);", note)[1])  # type: ignore[index]  # else it fails here
    assert (done.code, error.startswith("error: cannot write the result: ")) == (1, True)
    assert call("get", at, "-s", root, "-o", "json").json["body"] == "x"


def test_no_memory_to_tell_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def report(*_: object) -> int:
        raise MemoryError

    monkeypatch.setitem(sys.modules, "rmqctl.failures", SimpleNamespace(report=report))
    assert main(["no-such-command"]) == exit_codes.FAILED
    assert capfd.readouterr().err.startswith("error: there is not enough memory: ")


def test_closed_streams() -> None:
    words = " ".join(command("checkpoint", "-s", ROOT / "sample_store"))
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{words} {closed}"],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), closed


def stopped(number: signal.Signals, *words: object, group: bool = False) -> Result:
    """Send a signal once the command is at work, to it or, as a terminal does, to all its processes."""
    marker = Path(str(words[1]))
    process = subprocess.Popen(
        command(*words, program=ARTIFICIAL),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert marker.read_text() == "tidy"
    return Result(process.returncode, out, err)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")],
)
def test_signals_let_the_command_tidy_up(number: signal.Signals, code: int, word: str, tmp_path: Path) -> None:
    assert one_line(stopped(number, "slow", tmp_path / "1", "--silent"), code) == word
    document = stopped(number, "slow", tmp_path / "2", "-o", "json")
    assert one_line(document, code) == word
    assert list(document.json) == ["rows", "error"]
    assert document.json["rows"][0] == {"number": 0}
    assert document.json["error"]["code"] == "interrupted"
    assert stopped(number, "slow", tmp_path / "3", "-o", "ndjson").lines[-1]["error"]["message"] == word


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("group", [True, False])
def test_workers_end_without_a_word_of_their_own(
    number: signal.Signals, code: int, group: bool, tmp_path: Path
) -> None:
    one_line(stopped(number, "workers", tmp_path / "m", group=group), code)


def test_nohup_is_respected(tmp_path: Path) -> None:
    marker = tmp_path / "m"
    process = subprocess.Popen(
        ["nohup", *command("slow", marker, "--silent", program=ARTIFICIAL)],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not marker.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143


def test_without_a_terminal_nobody_is_asked() -> None:
    assert one_line(artificial("ask"), 2) == "ask needs a confirmation: give --yes"
    assert artificial("ask", "--yes", "-o", "json").json == {"answer": True}


@pytest.mark.parametrize(
    ("typed", "answer"), [("y\n", "yes"), ("YES\n", "yes"), ("\n", "no"), ("n\n", "no"), ("\x04", "no")]
)
def test_on_a_terminal_only_yes_is_yes(typed: str, answer: str) -> None:
    shown = on_terminal("ask", program=ARTIFICIAL, typed=typed).text
    assert "Really? [y/N] " in shown
    assert shown.split()[-1] == answer


def test_errors_on_a_terminal_are_the_same_line() -> None:
    assert on_terminal("zzz").out == "error: no such command 'zzz': see `rmqctl --help`\n"


def test_a_folder_where_the_checkpoint_should_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    line = f"cannot read the checkpoint: Is a directory ({tmp_path}/checkpoint): {NO_FILE}"
    assert one_line(call("checkpoint", "-s", tmp_path), 1) == line
