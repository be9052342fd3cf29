"""A log at work, for tests of what follows one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.damage import Damageable


@pytest.fixture
def one_segment(damageable: Callable[..., Damageable]) -> Damageable:
    """A log at work in its first segment, with some hundred records, and the queues of the whole log."""
    store = damageable("load-533")
    for segment in store.segments[1:]:
        segment.unlink()
    return store
