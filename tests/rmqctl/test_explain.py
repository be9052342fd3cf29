"""`rmqctl explain`."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from store_core.findings import KINDS
from tests.rmqctl.calls import call


@pytest.mark.parametrize("code", ["L001", "l001", " c004 "])
def test_one_code(code: str) -> None:
    kind = KINDS[code.strip().upper()]
    assert call("explain", code, "-o", "json").json == asdict(kind)
    text = call("explain", code).out
    assert all(part in text for part in (kind.code, kind.severity, kind.title, kind.explanation, kind.advice))


def test_all_codes() -> None:
    assert call("explain", "-o", "json").json == {"codes": [asdict(kind) for kind in KINDS.values()]}
    assert call("explain", "-o", "ndjson").lines == [asdict(kind) for kind in KINDS.values()]
    assert [line.split()[0] for line in call("explain").out.splitlines()[1:]] == list(KINDS)


@pytest.mark.parametrize(
    ("code", "to_do"),
    [
        ("L0O1", "did you mean L001, "),
        ("zzzzzz", "run `rmqctl explain` for all codes"),
        ("", "run `rmqctl explain` for all codes"),
    ],
)
def test_an_unknown_code(code: str, to_do: str) -> None:
    result = call("explain", code, "-o", "json")
    assert result.code == 2
    assert result.err.startswith(f"error: unknown finding code {code!r}: {to_do}")
    assert result.json["error"]["code"] == "usage"


def test_advice_names_commands_that_are_there() -> None:
    advised = {
        (words[1], option)
        for kind in KINDS.values()
        for line in re.findall("`(rmqctl [^`]+)`", f"{kind.explanation} {kind.advice}")
        for words in [line.split()]
        for option in [word.split("=")[0] for word in words if word.startswith("-")] or [""]
    }
    assert ("log", "--max") in advised
    assert [
        (command, option)
        for command, option in sorted(advised)
        if not re.search(rf"(?<![\w-]){option}\b", call(command, "--help").out)
    ] == []
