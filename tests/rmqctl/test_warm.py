"""A copy of the loaded program answers as a process that loads it anew."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import GoldenStore
from tests.rmqctl import warm
from tests.rmqctl.calls import ARTIFICIAL, ROOT, Result, call, command, environment


@pytest.mark.product(3)
@pytest.mark.parametrize(
    "words",
    [
        ("check", "-o", "json"),
        ("info",),
        ("recover",),
        ("log", "-o", "ndjson"),
        ("sql", "select topic, count(*) from messages group by 1 order by 1"),
        ("pull", "no-such-topic", 0),
        ("get", "x"),
        ("no-such-command",),
        ("--help",),
    ],
    ids=lambda words: words[0],
)
def test_it_answers_as_one_that_is_loaded_anew(golden: GoldenStore, words: tuple[object, ...]) -> None:
    words = (*words, "-s", golden("crash-533"))
    anew = subprocess.run(
        command(*words), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert call(*words) == Result(anew.returncode, anew.stdout, anew.stderr)


def test_the_environment_is_that_of_the_call(golden: GoldenStore) -> None:
    assert call("info", "-o", "json", RMQCTL_STORE=str(golden("crash-533"))).json["stores"]
    assert not warm.can_run(environment(RMQCTL_KERNEL="python"))
    assert not warm.can_run(environment(LANG=None if "LANG" in os.environ else "C"))


def test_the_deadline_kills_it_and_the_next_one_is_answered() -> None:
    streams = [os.open(os.devnull, os.O_RDWR)] * 3
    words = ["work", "--seconds", "60"]
    with pytest.raises(AssertionError, match="not done within 1 s"):
        warm.run(ARTIFICIAL[1], words, streams, environment(), str(ROOT), 1)
    assert call("--version").code == 0
