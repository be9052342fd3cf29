"""The default run leaves out what needs a JVM, and of large products all but their representatives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import pytest_xdist_auto_num_workers

ROOT: Final = Path(__file__).parent.parent
_TESTS: Final = """
import pytest

@pytest.fixture
def jars():
    return None

@pytest.fixture
def broker(jars):
    return None

def test_broker(broker): pass

@pytest.mark.product
@pytest.mark.parametrize("exit", ["clean", "crash"])
@pytest.mark.parametrize("case", range(20))
def test_values(case, exit): pass

@pytest.mark.product(4)
@pytest.mark.parametrize("byte", range(91))
def test_counted(byte): pass

@pytest.mark.product(name=("b", "d"))
@pytest.mark.parametrize("name", "abcd")
@pytest.mark.parametrize("jobs", [1, 2])
def test_named(name, jobs): pass
"""


@pytest.fixture
def collected(tmp_path: Path) -> dict[str, set[str]]:
    """Each tier's tests of a file with a broker's test and three products."""
    (tmp_path / "test_some.py").write_text(_TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"
    )
    found = {}
    for tier in ("default", "broker", "exhaustive"):
        words = [] if tier == "default" else ["-m", tier]
        command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-n", "0"]
        command += ["-p", "no:cacheprovider", "--collect-only", "-vv", *words, tmp_path / "test_some.py"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found[tier] = {
            line.strip()[10:-1] for line in done.stdout.splitlines() if line.strip().startswith("<Function ")
        }
    return found


def test_each_test_has_one_tier(collected: dict[str, set[str]]) -> None:
    default, exhaustive = collected["default"], collected["exhaustive"]
    assert collected["broker"] == {"test_broker"}
    assert not default & exhaustive
    assert len(default | exhaustive) == 40 + 91 + 8
    assert {name for name in default if "counted" in name} == {f"test_counted[{byte}]" for byte in (0, 22, 45, 68)}
    assert {name for name in default if "named" in name} == {
        f"test_named[{jobs}-{name}]" for jobs in "12" for name in "bd"
    }
    values = [name[len("test_values[") : -1].split("-") for name in default if "values" in name]
    assert len(values) in (20, 21)
    assert ({case for case, _ in values}, {exit for _, exit in values}) == ({*map(str, range(20))}, {"clean", "crash"})


@pytest.mark.parametrize(
    ("args", "keyword", "is_parallel"),
    [
        (["tests"], "", True),
        (["tests/recovery", "tests/export"], "", True),
        (["tests"], "crash", False),
        (["tests/derive"], "", False),
        (["tests/test_tiers.py::test_one"], "", False),
    ],
)
def test_a_small_run_starts_no_workers(
    args: list[str], keyword: str, is_parallel: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(pytestconfig, "args", args)
    monkeypatch.setattr(pytestconfig.option, "keyword", keyword)
    monkeypatch.setattr(pytestconfig.option, "lf", False)
    assert (pytest_xdist_auto_num_workers(pytestconfig) > 1) is is_parallel
