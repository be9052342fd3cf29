"""What is packed for executors that have nothing but Python."""

from __future__ import annotations

import importlib.metadata

import pytest

from store_core.export.runners import pack

REQUIRES = {
    "rmqctl": [
        "numpy>=2",
        'pyarrow>=24; extra == "export"',
        'rmqctl[export]; extra == "sql"',
        'duckdb; extra == "sql"',
    ],
    "numpy": ['pytest; extra == "test"', 'polars; extra == "export"'],
    "pyarrow": [],
}


def test_the_environment_has_the_base_and_what_makes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", REQUIRES.__getitem__)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: name)
    assert pack._needed(pack.DISTRIBUTION) == ["numpy", "pyarrow"]
