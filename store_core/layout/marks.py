"""Name the marks by which rmqctl recognizes its own records in a store (store behaviour, section 15.1)."""

from __future__ import annotations

from typing import Final

FILLER_TOPIC: Final = "RMQCTL_FILLER"  # topic of a ROLLBACK record that closes a hole; never dispatched
TOMBSTONE_PROPERTY: Final = "RMQCTL_TOMBSTONE"  # on a record written in place of a lost message
TOMBSTONE_VALUE: Final = "lost"
TOMBSTONE_TOPIC: Final = "RMQCTL_TOMBSTONE"  # a broker delivers the tombstone of a lost delayed message to it
MAX_FILLER_SIZE_BYTES: Final = 4 << 20  # live records are not larger by default; recovery allocates a record's size
