"""List the codes of X: exports."""

from __future__ import annotations

from typing import Final

from store_core.kinds.kind import Kind

KINDS: Final = (
    Kind(
        "X001",
        "warning",
        "files of an export are gone",
        "The manifest of an export that was added to names files that were removed or changed: their messages are in no file any more. A later commit does not bring them back.",
        "Restore the files, or export all again with `--overwrite`.",
    ),
)
