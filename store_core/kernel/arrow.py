"""The variable parts of records as Arrow lays them out, so that Arrow can take them over as they are.

The compiled kernel where one could be built, else ``reference.arrow``, which is also the definition.
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

    ``valid``: a bit a row, the lowest of a byte first, 0 where the row is null; None where no row can be null.
    """

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.uint8] | None


class Words(NamedTuple):
    """A column of texts that recur: row i is text ``numbers[i]`` of ``texts``, which has each once, as they appear.

    ``valid`` as in Texts; a null has the number 0.
    """

    numbers: NDArray[np.int32]
    texts: Texts
    valid: NDArray[np.uint8] | None


@dataclass(frozen=True, slots=True)
class ArrowColumns:
    """The parts that were asked for; the others are None. The arrays own their bytes.

    ``tombstone`` has a bit a row, as ``valid`` in Texts. ``key_bounds`` and ``pair_bounds``: the keys of row i are those from key_bounds[i] to key_bounds[i + 1], and so its
    properties in ``names`` and ``values``. Words are what a Collector gives, unless there are too many
    different ones; else they are Texts, as the others are.
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
    """Columns of the records that lie at these places of a window, a row each, in their order.

    ``at``: indices into ``window`` (bytes-like and C-contiguous); ``size_bytes``: how long the records are. ``wanted``:
    ArrowPart. Text that is not UTF-8 has U+FFFD as in Java. Raises ValueError where a place holds no well-formed record
    of its length, where the arrays differ in length, and where a column would have 2 GiB or more.
    """
    if is_native():
        from store_core.kernel.native import arrow_columns as compiled

        return compiled(window, at, size_bytes, wanted)
    from store_core.kernel.reference.arrow import arrow_columns as reference

    return reference(window, at, size_bytes, wanted)


class Collector(Protocol):
    """Records of many windows, by group, until all of a group are asked for as columns."""

    def add(self, window: Any, at: Ints, size_bytes: Ints, group: Ints) -> None:
        """Records at places of a window, as for ``arrow_columns``, and each one's group: small numbers, new ones less
        than the number of rows behind the largest so far. Raises ValueError as that does; then it is of no use any more."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory that the columns of what is there take, about."""
        ...

    def take(self, group: int) -> ArrowColumns:
        """The records of a group, in the order they came. They are no longer there then."""
        ...


def collector(wanted: int, expected_bytes: int) -> Collector:
    """A new one. ``wanted``: ArrowPart; ``expected_bytes``: the length of all records that come before all are taken, about."""
    if is_native():
        from store_core.kernel.native import Collector as Compiled

        return Compiled(wanted, expected_bytes)
    from store_core.kernel.reference.arrow import Collector as Reference

    return Reference(wanted, expected_bytes)
