"""What rmqctl leaves in a store, so that it can be told apart later (store behaviour, section 15.1)."""

from __future__ import annotations

from typing import Final

FILLER_TOPIC: Final = "RMQCTL_FILLER"  # topic of a ROLLBACK record that closes a hole; never dispatched
TOMBSTONE_PROPERTY: Final = "RMQCTL_TOMBSTONE"  # on a record that stands where a lost message was
TOMBSTONE_VALUE: Final = "lost"
TOMBSTONE_TOPIC: Final = "RMQCTL_TOMBSTONE"  # where a lost delayed message's tombstone is delivered
MAX_FILLER_SIZE_BYTES: Final = 4 << 20  # live records are not larger by default; recovery allocates a record's size
