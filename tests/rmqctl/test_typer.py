"""typer is asked by public names only, so that its next release costs time at most."""

from __future__ import annotations

import ast

import pytest

from tests.rmqctl.calls import ROOT, call

PUBLIC = {
    "typer": {"TyperException"},
    "typer.completion": {"get_completion_inspect_parameters", "shell_complete"},
    "typer.core": {"TyperCommand", "TyperGroup"},
    "typer.main": {"get_command"},
}


def asked_of_typer(source: str) -> set[str]:
    """Every name of typer that a module imports or reaches through the module's own name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names if name.name.startswith(("typer", "click"))}
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(("typer", "click")):
                found |= {f"{module}.{name.name}" for name in names}
            case ast.Attribute(value=ast.Name(id="typer"), attr=name):
                found.add(f"typer.{name}")
    return found


def test_only_public_names_of_typer_are_used() -> None:
    import typer

    known = {f"{module}.{name}" for module, names in PUBLIC.items() for name in names}
    known |= {"typer", *(f"typer.{name}" for name in vars(typer) if not name.startswith("_"))}
    for path in sorted((ROOT / "rmqctl").rglob("*.py")):
        assert asked_of_typer(path.read_text()) <= known, path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["log", "--from", "-1"], "invalid value '-1' for --from: expected a whole number from 0 on"),
        (["verify-crc", "--max-seconds", "nan"], "invalid value 'nan' for --max-seconds: expected a number from 0 on"),
        (["put", "T", "x", "--flag", "1.5"], "invalid value '1.5' for --flag: expected a whole number"),
        (["sql", "select 1", "--memory", "much"], "invalid value 'much' for --memory: give bytes, or a number with k, M, G or T"),
        (["log", "--begin", "soon", "--tz", "Mars"], "unknown time zone 'Mars' (--begin): give UTC, local, an offset such as +08:00, or a name such as Asia/Shanghai"),
    ],
)  # fmt: skip
def test_values_are_read_and_refused_here(words: list[str], line: str) -> None:
    result = call(*words, "-s", ROOT / "sample_store")
    assert (result.code, result.err) == (2, f"error: {line}\n")
