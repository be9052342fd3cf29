"""Contents that come by the chunk, as tests compare them."""

from __future__ import annotations

from collections.abc import Iterable

from store_core.storage.digest import Hole


def joined(chunks: Iterable[bytes | Hole]) -> bytes:
    return b"".join(bytes(len(chunk)) if isinstance(chunk, Hole) else chunk for chunk in chunks)
