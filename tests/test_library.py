"""docs/library.md: the names it lists are those of ``store_core``, and its examples run."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import store_core

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "library.md"


def test_the_page_lists_every_public_name() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall("`(.+?)`", row)) == sorted(store_core.__all__)
    assert all(callable(getattr(store_core, name)) for name in store_core.__all__)


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "sample_store", tmp_path / "sample_store")
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert tried > 15
    assert failed == 0


def test_the_package_loads_a_name_only_when_it_is_asked_for() -> None:
    code = "import store_core, sys; sys.exit(any(name.startswith('store_core.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = store_core.no_such_name
