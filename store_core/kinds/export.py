"""X: exports."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import Kind

KINDS: Final = (
    Kind(
        "X001",
        "warning",
        "files of an export are gone",
        "The manifest of an export that was added to names files that somebody has removed or changed: the messages in them are in no file any more. A later commit does not bring them back.",
        "Put the files back, or export all anew with `--overwrite`.",
    ),
)
