"""Derive struct formats, numpy dtypes and the tables in docs/ from a table of fields."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_STRUCT_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its type (``i1 i2 i4 i8 u1 …``, or ``sN`` for N raw bytes) and its meaning."""

    name: str
    type: str
    meaning: str = ""

    @property
    def size_bytes(self) -> int:
        return int(self.type[1:])


@dataclass(frozen=True)
class Layout:
    """Fields back to back, big-endian, without padding."""

    name: str
    fields: tuple[Field, ...]

    @cached_property
    def struct(self) -> Struct:
        return Struct(">" + "".join(_STRUCT_CODES.get(f.type, f"{f.size_bytes}s") for f in self.fields))

    @cached_property
    def size_bytes(self) -> int:
        return sum(f.size_bytes for f in self.fields)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    @cached_property
    def _offsets(self) -> dict[str, int]:
        offsets, at = {}, 0
        for field in self.fields:
            offsets[field.name] = at
            at += field.size_bytes
        return offsets

    def offset_of(self, name: str) -> int:
        """Return the byte offset of a field from the layout's first byte."""
        return self._offsets[name]

    def end_of(self, name: str) -> int:
        """Return the byte offset just after a field."""
        return self._offsets[name] + self.field(name).size_bytes

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)

    def field_struct(self, name: str) -> Struct:
        """Return the struct of one field alone."""
        field = self.field(name)
        return Struct(">" + _STRUCT_CODES.get(field.type, f"{field.size_bytes}s"))

    def read(self, buffer: Any, at: int = 0) -> dict[str, Any]:
        """Return all fields at ``at`` by name. The caller has checked that the buffer is long enough."""
        return dict(zip(self.names, self.struct.unpack_from(buffer, at), strict=True))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The same fields as a packed numpy dtype."""
        import numpy as np

        return np.dtype(
            [(f.name, f">{f.type}" if f.type in _STRUCT_CODES else f"S{f.size_bytes}") for f in self.fields]
        )
