"""Shell completion, as the shells call it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqctl.commands import built_commands
from tests.rmqctl.calls import ROOT, call, environment


def completed(line: str) -> list[str]:
    """Words that bash would offer at the end of a line."""
    words = line.split(" ")
    result = call(_RMQCTL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert result.err == ""
    return result.out.split()


def test_commands_and_global_options() -> None:
    assert completed("rmqctl ") == list(built_commands())
    assert completed("rmqctl check") == [name for name in built_commands() if name.startswith("check")]
    assert completed("rmqctl -s /x chec") == [name for name in built_commands() if name.startswith("chec")]
    assert {"--store", "--output", "--help"} <= set(completed("rmqctl --"))


def test_a_commands_options_values_and_arguments() -> None:
    assert completed("rmqctl checkpoint --bro") == ["--broker-version"]
    assert completed("rmqctl checkpoint -o ") == [
        "table",
        "plain",
        "json",
        "ndjson",
        "csv",
        "tsv",
        "github",
        "parquet",
        "arrow",
    ]
    assert completed("rmqctl checkpoint -o j") == ["json"]
    assert completed("rmqctl explain L00")[:2] == ["L001", "L002"]
    assert completed("rmqctl explain l00")[:2] == ["l001", "l002"]
    assert completed("rmqctl completion ") == ["bash", "zsh", "fish"]


def test_other_shells() -> None:
    zsh = call(_RMQCTL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="rmqctl expl")
    assert '"explain":"Explain finding codes."' in zsh.out
    fish = call(
        _RMQCTL_COMPLETE="complete_fish", _TYPER_COMPLETE_ARGS="rmqctl expl", _TYPER_COMPLETE_FISH_ACTION="get-args"
    )
    assert fish.out == "explain\tExplain finding codes.\n"


def test_topics_of_the_store_named_so_far(golden: Any) -> None:
    from rmqctl.options import complete_topics

    class Parsed:
        def __init__(self, **params: Any) -> None:
            self.params, self.parent = params, None

    root = golden("load-533")
    topics = sorted(p.name for p in (root / "consumequeue").iterdir())
    assert complete_topics(Parsed(store=[f"x={root}"]), [], "") == topics  # type: ignore[arg-type]  # a context's two fields
    assert complete_topics(Parsed(store=["/nowhere"]), [], "") == []  # type: ignore[arg-type]  # likewise


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script(shell: str) -> None:
    result = call("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert "_RMQCTL_COMPLETE=complete_" + shell in result.out
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=result.out, text=True, check=True)


def test_bash_really_completes(tmp_path: Path) -> None:
    program = tmp_path / "rmqctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m rmqctl "$@"\n')
    program.chmod(0o755)
    script = 'eval "$(rmqctl completion bash)"; COMP_WORDS=(rmqctl expl); COMP_CWORD=1; _rmqctl_completion rmqctl; echo "${COMPREPLY[@]}"'
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("explain\n", "")


def test_other_shells_have_none() -> None:
    result = call("completion", "tcsh")
    assert result.code == 2
    assert "invalid value 'tcsh'" in result.err
    assert "expected one of bash, zsh, fish" in result.err
