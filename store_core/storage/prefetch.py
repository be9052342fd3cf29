"""Chunks made by a thread while the caller uses the one before: making them and writing them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Chunk = TypeVar("Chunk")


def made_ahead(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same chunks, none of them None, in their order; one is held more than without. Who makes them must not mind the thread."""
    source = iter(chunks)
    chunk = next(source, None)
    with ThreadPoolExecutor(1, "ahead") as thread:
        while chunk is not None:
            following = thread.submit(next, source, None)
            yield chunk
            chunk = following.result()
