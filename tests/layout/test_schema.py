"""A layout's struct, dtype, offsets and single fields are one table seen from four sides."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import store_core.layout
from store_core.layout import index, message_id, queue, record
from store_core.layout.checkpoint import CHECKPOINT
from store_core.layout.schema import Field, Layout

ALL = {
    f"{module}.{name}": value
    for _, module, _ in pkgutil.iter_modules(store_core.layout.__path__)
    for name, value in vars(importlib.import_module(f"store_core.layout.{module}")).items()
    if isinstance(value, Layout)
}


@pytest.mark.parametrize("name", ALL)
def test_all_forms_of_a_layout_agree(name: str) -> None:
    layout = ALL[name]
    data = bytes(range(1, layout.size_bytes + 1))
    assert layout.struct.size == layout.dtype.itemsize == layout.size_bytes
    values = layout.read(b"??" + data, 2)
    assert list(values) == list(layout.names)
    assert len(set(layout.names)) == len(layout.fields)
    at = 0
    for field in layout.fields:
        assert (layout.offset_of(field.name), layout.end_of(field.name)) == (at, at + field.size_bytes)
        [alone] = layout.field_struct(field.name).unpack_from(data, at)
        assert alone == values[field.name]
        if field.type[0] != "s":
            assert int.from_bytes(data[at : at + field.size_bytes], "big", signed=field.type[0] == "i") == alone
        assert layout.dtype.fields is not None
        assert layout.dtype.fields[field.name][1] == at
        at += field.size_bytes
    assert layout.struct.pack(*values.values()) == data


def test_numbers_are_signed_as_their_type_says() -> None:
    layout = Layout("x", tuple(Field(kind, kind) for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "s3")))
    found = layout.read(b"\xff" * layout.size_bytes)
    assert found == {
        "i1": -1, "u1": (1 << 8) - 1, "i2": -1, "u2": (1 << 16) - 1, "i4": -1, "u4": (1 << 32) - 1, "i8": -1, "u8": (1 << 64) - 1,
        "s3": b"\xff\xff\xff",
    }  # fmt: skip


def test_sizes_that_every_broker_counts_on() -> None:
    """Sections 2.2, 6, 7, 8 and 12 of the format."""
    assert (queue.ENTRY.size_bytes, queue.BATCH_ENTRY.size_bytes, queue.EXT_UNIT.size_bytes) == (20, 46, 20)
    assert (index.HEADER.size_bytes, index.SLOT.size_bytes, index.ENTRY.size_bytes) == (40, 4, 20)
    assert (record.MIN_RECORD_SIZE_BYTES, record.MIN_BLANK_SIZE_BYTES, record.PROPERTY_CRC.size_bytes) == (91, 8, 20)
    assert [CHECKPOINT.end_of(name) for name in CHECKPOINT.names[2:]] == [24, 32, 40, 48]
    assert (message_id.OFFSET_ID_V4_SIZE_BYTES, message_id.OFFSET_ID_V6_SIZE_BYTES) == (16, 28)
