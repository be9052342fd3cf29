"""What light calls load: nothing heavy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rmqctl.calls import ROOT, environment

HEAVY = {
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
    "tabulate",
    "duckdb",
    "jpype",
    "multiprocessing",
    "asyncio",
    "csv",
    "zoneinfo",
}
_LOADED = """
import json, sys
from rmqctl.app import main
code = main(sys.argv[1:])
sys.stdout.flush()
print("\\n" + json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(*words: object) -> set[str]:
    """Modules that a successful call leaves loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *map(str, words)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


def heavy(modules: set[str]) -> set[str]:
    return modules & HEAVY


def test_checkpoint_for_scripts_loads_nothing_heavy(golden: object) -> None:
    modules = loaded("checkpoint", "-o", "json", "-s", golden("clean-533"))  # type: ignore[operator]  # the fixture's function
    assert heavy(modules) == set()
    commands = {name for name in modules if name.startswith("rmqctl.commands.")}
    assert commands == {"rmqctl.commands.checkpoint"}
    assert "rmqctl.output.document" not in modules


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_verification_for_scripts_loads_nothing_heavy(jobs: int, golden: object) -> None:
    words = "verify-crc", "-o", "json", "--jobs", jobs, "-s", golden("clean-533")  # type: ignore[operator]  # as above
    modules = loaded(*words)
    assert heavy(modules) == set()
    assert modules.isdisjoint({"concurrent.futures", "hashlib", "store_core.scan.log", "store_core.storage.writer"})


def test_the_version_loads_not_even_the_parser() -> None:
    modules = loaded("--version")
    assert {name for name in modules if name.startswith(("rmqctl", "typer"))} == {
        "rmqctl",
        "rmqctl.app",
        "rmqctl.exit_codes",
        "rmqctl.output",
        "rmqctl.signals",
        "rmqctl.output.streams",
    }


@pytest.mark.parametrize("words", [[], ["--help"], ["checkpoint", "--version"]])
def test_help_loads_no_command(words: list[str]) -> None:
    modules = loaded(*words)
    assert heavy(modules) == set()
    assert {name for name in modules if name.startswith("rmqctl.commands.")} <= {"rmqctl.commands.checkpoint"}


def test_only_the_tables_that_are_shown_are_loaded() -> None:
    assert heavy(loaded("explain", "L001", "-o", "plain")) == {"tabulate"} | heavy(tabulates_own())
    assert "rich" in loaded("explain", "L001", "-o", "table")
    assert heavy(loaded("explain", "-o", "csv")) == {"csv"}


def test_an_export_leaves_pandas_alone(golden: object, tmp_path: Path) -> None:
    """As the program itself: a call from Python may be from one that works with pandas."""
    arguments = ["rmqctl", "export", tmp_path / "out", "-q", "-s", golden("clean-533")]  # type: ignore[operator]  # as above
    code = "import sys; from rmqctl.app import main; print(main(), *({'pandas', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = {list(map(str, arguments))}; {code}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "0 pyarrow", done.stderr


def tabulates_own() -> set[str]:
    """What tabulate loads by itself."""
    done = subprocess.run(
        [sys.executable, "-c", "import json, sys, tabulate; print(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_every_command_can_be_loaded_without_heavy_libraries() -> None:
    modules = sorted(path.stem for path in (Path(ROOT) / "rmqctl/commands").glob("[a-z]*.py"))
    code = "import importlib, json, sys\n" + "".join(
        f"importlib.import_module('rmqctl.commands.{m}')\n" for m in modules
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "print(json.dumps(list(sys.modules)))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert heavy(set(json.loads(done.stdout))) == set()


def test_few_files_run_to_show_a_log() -> None:
    """As the counter of benchmarks/ counts: the files of which any function runs, apart from what runs while they are loaded."""
    words = [sys.executable, "-m", "benchmarks.files_run", "log", "-s", str(ROOT / "sample_store")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    counted = re.search(r"log: \d+ functions in (\d+) files", done.stderr)
    assert counted is not None
    assert int(counted[1]) <= 50
