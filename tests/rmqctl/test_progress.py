"""Progress: a bar on a terminal, lines with -v, else nothing, and always on stderr."""

from __future__ import annotations

import pytest

from rmqctl import progress as module
from rmqctl.progress import progress
from tests.rmqctl.calls import ARTIFICIAL, artificial, on_terminal


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
    with progress("p", 10, wanted="-q" not in words and "--no-progress" not in words, verbose="-v" in words) as bar:
        bar(5)
    assert capsys.readouterr() == ("", "")


def test_a_line_every_few_seconds_with_verbose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 101.0, 104.0, 105.0, 108.0, 112.0])
    monkeypatch.setattr("rmqctl.progress.time.monotonic", lambda: next(clock))
    with progress("verify", 16 << 20, wanted=True, verbose=True) as bar:
        for done in (1, 4, 5, 8, 16):
            bar(done << 20)
    assert capsys.readouterr().err.splitlines() == [
        "verify: 4.0 MiB of 16.0 MiB (25%), 1.0 MiB/s, 12 s left",
        "verify: 8.0 MiB of 16.0 MiB (50%), 1.0 MiB/s, 8 s left",
        "verify: 16.0 MiB of 16.0 MiB (100%), 1.3 MiB/s, 0 s left",
    ]


def test_unknown_totals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_SECONDS", 0.0)
    with progress("copy", 0, wanted=True, verbose=True) as bar:
        bar(2048)
    assert capsys.readouterr().err.startswith("copy: 2.0 KiB, ")


def test_talk_does_not_touch_results() -> None:
    result = artificial("work", "--seconds", "0.1", "-v", "-o", "json")
    assert result.json == {"done": True}
