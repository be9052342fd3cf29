"""Progress: a bar on a terminal, lines with -v, else nothing, and always on stderr."""

from __future__ import annotations

import re

import pytest

from rmqctl.app import main
from rmqctl.output import progress_bar as module
from rmqctl.output.progress_bar import Course, progress
from tests.conftest import DamagedStore
from tests.rmqctl.calls import ARTIFICIAL, ROOT, artificial, on_terminal


def test_a_bar_with_rate_and_time_left_on_a_terminal() -> None:
    shown = on_terminal("work", "--seconds", "1.2", "-o", "json", program=ARTIFICIAL).text
    assert "work" in shown
    assert "GiB" in shown
    assert "/s" in shown
    assert "%" in shown


@pytest.mark.parametrize("words", [["-q"], ["--no-progress"], ["--seconds", "0.1"]])
def test_no_bar_where_none_is_wanted_or_the_work_is_short(words: list[str]) -> None:
    shown = on_terminal("work", "--seconds", "0.8", *words, "-o", "json", program=ARTIFICIAL).out
    assert "%" not in shown
    assert "\x1b[?25l" not in shown


@pytest.mark.parametrize("words", [[], ["-q"], ["-q", "-v"], ["-v", "--no-progress"]])
def test_pipes_get_no_lines_unless_asked_for(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    with progress("p", 10, wanted="-q" not in words and "--no-progress" not in words, verbose="-v" in words) as (
        bar,
        _,
    ):
        bar(5)
    assert capsys.readouterr() == ("", "")


def test_a_line_every_few_seconds_with_verbose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 104.0, 105.0, 108.0, 112.0])
    monkeypatch.setattr("rmqctl.output.progress_bar.time.monotonic", lambda: next(clock))
    with progress("verify", 16 << 20, wanted=True, verbose=True) as (bar, _):
        for done in (1, 4, 5, 8, 16):
            bar(done << 20)
    assert capsys.readouterr().err.splitlines() == [
        "verify: 4.0 MiB of 16.0 MiB (25%), 1.0 MiB/s, 12 s left",
        "verify: 8.0 MiB of 16.0 MiB (50%), 1.0 MiB/s, 8 s left",
        "verify: 16.0 MiB of 16.0 MiB (100%), 1.3 MiB/s, 0 s left",
    ]


def test_unknown_totals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    with progress("copy", 0, wanted=True, verbose=True) as (bar, _):
        bar(2048)
    assert capsys.readouterr().err.startswith("copy: 2.0 KiB, ")


def test_talk_does_not_touch_results() -> None:
    result = artificial("work", "--seconds", "0.1", "-v", "-o", "json")
    assert result.json == {"done": True}


def test_the_bar_steps_aside_for_results_and_comes_back() -> None:
    shown = on_terminal("search", "--seconds", "2.4", "-o", "ndjson", program=ARTIFICIAL).out
    first, row, behind = shown.partition('{"row": 0}')
    assert "%" in first
    assert row
    assert "%" in behind
    # The bar's line is erased and its cursor brought back before the row, which stands on a line of its own.
    assert first.rindex("\x1b[?25h") > first.rindex("%")
    assert re.search(r"\x1b\[2K(\r|\n)*$", first[first.rindex("%") :])


def test_log_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    assert main(["log", "-s", str(ROOT / "sample_store"), "-v", "--from", "786432", "--topic", "Calm_audit"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"log: .* of 256\.0 KiB \(\d+%\), .*/s, \d+ s left", line) for line in lines)
    assert "(100%)" in lines[-1]


@pytest.mark.parametrize("words", [["rebuild", "all"], ["truncate", "567104"], ["check", "--jobs", "2"], ["check"]])
def test_several_walks_are_one_progress(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    main([*words, "-s", str(ROOT / "sample_store"), "-v", "-o", "json"])
    shares = [int(share) for share in re.findall(r"\((\d+)%\)", capsys.readouterr().err)]
    assert shares == sorted(shares)
    assert shares[-1] > 66
    assert max(shares) <= 100


@pytest.mark.parametrize("words", [[], ["--apply"], ["--apply", "--jobs", "2"], ["--policy", "broker"]])
def test_recover_is_one_progress_to_its_end(
    words: list[str], damaged: DamagedStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planning, applying and the closing check, of whose bytes the plan tells the most: in the end all are done."""
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    root = damaged("load-533", "flip-body-mid", "crash")
    main(["recover", "-s", str(root), "-v", "-o", "json", *words])
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert lines
    assert all(re.fullmatch(r"recover: \S+ \S+ of .* \(\d+%\), .*/s, \d+ s left", line) for line in lines)
    shares = [int(share) for share in re.findall(r"\((\d+)%\)", "\n".join(lines))]
    assert shares[-1] == 100
    assert max(shares) <= 100


def test_what_is_said_meanwhile_stands_on_a_line_of_its_own() -> None:
    shown = on_terminal("work", "--seconds", "2.4", "--talk", "-o", "json", program=ARTIFICIAL).out
    before, text, behind = shown.partition("note: half of it")
    assert "%" in before
    assert text
    assert re.search(r"\x1b\[2K(\r|\n)*$", before[before.rindex("%") :])
    assert "%" in behind


def test_a_piece_within_takes_the_place_of_what_was_left() -> None:
    said: list[tuple[str, int]] = []

    class Bar:
        def __call__(self, done_bytes: int, /) -> None:
            said.append(("done", done_bytes))

        def expect(self, total_bytes: int, /) -> None:
            said.append(("total", total_bytes))

    course = Course(Bar(), lambda: None, ahead_bytes=10)
    course(30)  # of 40 that were told
    course.begin(5, known=False)
    course(5)
    course.begin(10, known=True)
    course(10)
    assert said == [("done", 30), ("total", 45), ("done", 35), ("total", 45), ("done", 45)]
