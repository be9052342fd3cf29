"""Fixtures of the engine's tests: every store that was handed out for writing is checked at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import StoreCopy
from tests.engine.writing import Writable, Written


@pytest.fixture
def writable(store_copy: StoreCopy) -> Iterator[Writable]:
    """``writable(name, **settings)``: a copy to write to. It must be clean, and as derived from its log, at the end."""
    made: list[Written] = []

    def copied(name: str, **changes: str) -> Written:
        made.append(Written.of(name, store_copy(name), **changes))
        return made[-1]

    yield copied
    for written in made:
        assert not (written.root / "abort").exists()
        assert written.problems() == []
        assert written.not_as_derived() == []
