"""Fixtures that need real brokers: a JDK and Maven. Without them such tests are skipped, and fail under ``--no-skips``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.broker import jars as broker_jars
from tests.broker import oracle
from tests.broker.running import RunningBroker

OpenStore = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def jars() -> Callable[[str], Path]:
    """``jars(version)``: folder with all jars of a release."""

    def found(version: str) -> Path:
        try:
            return broker_jars.jars(version)
        except broker_jars.NoBrokerError as error:
            pytest.skip(str(error))

    return found


@pytest.fixture
def open_store(jars: Callable[[str], Path], tmp_path: Path) -> OpenStore:
    """``open_store(version, root, properties, requests=[...], ...)``: what a real store of that release makes of a copy (tests/broker/oracle.py)."""

    def opened(version: str, root: Path, properties: str, **options: Any) -> dict[str, Any]:
        jars(version)
        return oracle.open_store(version, root, properties, folder=tmp_path, **options)

    return opened


@pytest.fixture
def running_broker(jars: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """``running_broker(version, root, properties)``: a real broker serving ``root`` itself (hand it a copy); stopped at the end."""
    with ExitStack() as stack:

        def started(version: str, root: Path, properties: str, **options: str) -> RunningBroker:
            jars(version)
            home = tmp_path / f"broker-{version}-{len(list(tmp_path.iterdir()))}"
            return stack.enter_context(RunningBroker(version, root, properties, home, **options))

        yield started
