"""Read the checkpoint (store format, section 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store_core.errors import FailedError
from store_core.findings import Finding, finding
from store_core.layout import paths
from store_core.layout.checkpoint import CHECKPOINT, SAFETY_MARGIN_MS
from store_core.storage.files import open_read_only, reading_advice

# The file is one page, of which newer brokers use more; a copy may hold only the used part.
_WHOLE_SIZES_BYTES: Final = frozenset(
    CHECKPOINT.end_of(last)
    for last in ("index_msg_timestamp_ms", "master_flushed_offset", "confirm_phy_offset", "logics_phy_offset")
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The fields of the checkpoint and its findings. Times in ms since the epoch; a field after the file's end is 0."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_phy_offset: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def min_timestamp_ms(self) -> int:
        """The time after which a broker trusts nothing after a crash; 5.5 uses ``logics_phy_offset`` instead."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - SAFETY_MARGIN_MS)


def read_checkpoint(root: Path) -> Checkpoint:
    """Return the checkpoint of the store at ``root``. A missing or short file is a finding, and its fields are 0.

    Raises FailedError if the file cannot be read.
    """
    try:
        with open(open_read_only(root / paths.CHECKPOINT), "rb") as file:
            data = file.read(CHECKPOINT.size_bytes)
    except FileNotFoundError:
        return Checkpoint(findings=(finding("C001", "the store has no checkpoint", file=paths.CHECKPOINT),))
    except OSError as error:
        raise FailedError(
            f"cannot read the checkpoint: {error.strerror}",
            path=str(root / paths.CHECKPOINT),
            to_do=reading_advice(error),
        ) from error
    values = CHECKPOINT.read(data.ljust(CHECKPOINT.size_bytes, b"\0"))
    return Checkpoint(**values, findings=tuple(_findings(values, len(data))))


def _findings(values: dict[str, int], size_bytes: int) -> Iterator[Finding]:
    """Yield C002 if the file ends within a field, and C004 for each negative field. The end of an older release's file is no finding."""
    if size_bytes not in _WHOLE_SIZES_BYTES:
        message = f"the file has {size_bytes} bytes; what is missing counts as 0"
        yield finding("C002", message, file=paths.CHECKPOINT, size_bytes=size_bytes)
    for name, value in values.items():
        if value < 0:
            yield finding("C004", f"{name} is {value}", file=paths.CHECKPOINT)
