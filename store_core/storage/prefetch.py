"""Make chunks in a thread while the caller uses the previous one, so that making and writing overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Chunk = TypeVar("Chunk")


def made_ahead(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the same chunks in order, each made one ahead by a thread. No chunk may be None; the iterable must allow the thread."""
    source = iter(chunks)
    chunk = next(source, None)
    with ThreadPoolExecutor(1, "ahead") as thread:
        while chunk is not None:
            following = thread.submit(next, source, None)
            yield chunk
            chunk = following.result()
