"""Fixtures of the tests of mending."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def alone(nobody_else: None) -> None:
    """For all of them; a lock is seen all the same."""
