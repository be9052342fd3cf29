"""Scratch folders go away, whatever state the process is in."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack, suppress
from errno import EMFILE
from pathlib import Path

import pytest

from store_core.storage.scratch import scratch_folder


def _use_up(stack: ExitStack) -> None:
    """All descriptors, until the stack is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 400), hard))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    with suppress(OSError):
        while True:
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def _fill_and_run_out(stack: ExitStack, made: list[Path]) -> None:
    with scratch_folder("rmqctl-test-") as folder:
        made.append(folder)
        (folder / "consumequeue/Calm_orders/0").mkdir(parents=True)
        (folder / "consumequeue/Calm_orders/0/00000000000000000000").write_bytes(b"x")
        _use_up(stack)
        (folder / "more").write_bytes(b"")


def test_a_scratch_folder_goes_away_where_nothing_can_be_opened() -> None:
    made: list[Path] = []
    with ExitStack() as stack:
        with pytest.raises(OSError, match="more") as refused:
            _fill_and_run_out(stack, made)
        assert refused.value.errno == EMFILE
        assert not made[0].exists()
