"""Fixtures of the tests of the command line."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> None:
    """Copies of the program take it over; processes of their own do not."""
    if request.node.get_closest_marker("beside") is None:
        request.getfixturevalue("nobody_else")
