"""Fixtures of the tests of mending."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking through all processes takes most of an apply's time here, and tests/storage/test_lock.py looks at that."""
    monkeypatch.setattr("store_core.storage.live.who_has_files_open", lambda root, writable_roots=(): [])
