"""Lay out the variable parts of records as Arrow does, so that Arrow can use them without a copy.

The compiled kernel does it where it was built, else ``reference.arrow``, which is also the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store_core.kernel import is_native

Ints = NDArray[Any]


class Texts(NamedTuple):
    """A column of texts (UTF-8) or bytes: row i is ``data[offsets[i]:offsets[i + 1]]``.

    ``valid``: one bit for each row, the lowest of a byte first, 0 where the row is null; None where no row can be null.
    """

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.uint8] | None


class Words(NamedTuple):
    """A column of recurring texts: row i is text ``numbers[i]`` of ``texts``, which has each text once, in order of appearance.

    ``valid`` as in Texts; a null has the number 0.
    """

    numbers: NDArray[np.int32]
    texts: Texts
    valid: NDArray[np.uint8] | None


@dataclass(frozen=True, slots=True)
class ArrowColumns:
    """The wanted parts; the others are None. The arrays own their bytes.

    * ``tombstone`` has one bit for each row, as ``valid`` in Texts.
    * ``key_bounds`` and ``pair_bounds``: the keys of row i are those from key_bounds[i] to key_bounds[i + 1], and so are its properties in
      ``names`` and ``values``.
    * A Collector returns Words, or Texts where a column has too many different ones.
    """

    offset_msg_id: Texts | None = None
    born_host: Texts | Words | None = None
    store_host: Texts | Words | None = None
    unique_key: Texts | None = None
    tags: Texts | Words | None = None
    key_bounds: NDArray[np.int32] | None = None
    keys: Texts | None = None
    pair_bounds: NDArray[np.int32] | None = None
    names: Texts | Words | None = None
    values: Texts | None = None
    body: Texts | None = None
    tags_code: NDArray[np.int64] | None = None
    tombstone: NDArray[np.uint8] | None = None


def arrow_columns(window: Any, at: Ints, size_bytes: Ints, wanted: int) -> ArrowColumns:
    """Return columns of the records at these places of a window, one row each, in their order.

    Text that is not UTF-8 has U+FFFD as in Java.

    Args:
        window: Bytes-like and C-contiguous.
        at: Indices into ``window``.
        size_bytes: The lengths of the records.
        wanted: ArrowPart.

    Raises:
        ValueError: A place has no well-formed record of its length, the arrays differ in length, or a column would have 2 GiB or more.
    """
    if is_native():
        from store_core.kernel.native import arrow_columns as compiled

        return compiled(window, at, size_bytes, wanted)
    from store_core.kernel.reference.arrow import arrow_columns as reference

    return reference(window, at, size_bytes, wanted)


class Collector(Protocol):
    """Collects records of many windows by group, and returns all records of a group as columns."""

    def add(self, window: Any, at: Ints, size_bytes: Ints, group: Ints) -> None:
        """Add records at places of a window, as for ``arrow_columns``, each with its group.

        Groups are small numbers: a new one exceeds the largest so far by at most the number of rows. Raises ValueError as ``arrow_columns``; the
        collector is not usable after that.
        """
        ...

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the columns of all collected records."""
        ...

    def take(self, group: int) -> ArrowColumns:
        """Return and remove the records of a group, in the order of their arrival."""
        ...


def collector(wanted: int, expected_bytes: int) -> Collector:
    """Return a new collector. ``wanted``: ArrowPart; ``expected_bytes``: the approximate length of all records until all are taken."""
    if is_native():
        from store_core.kernel.native import Collector as Compiled

        return Compiled(wanted, expected_bytes)
    from store_core.kernel.reference.arrow import Collector as Reference

    return Reference(wanted, expected_bytes)
