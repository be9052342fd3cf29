"""Folders for what is needed only meanwhile, in the system's place for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_SPARE_DESCRIPTORS: Final = 12  # two a level that is removed


@contextmanager
def scratch_folder(prefix: str = "rmqctl-") -> Iterator[Path]:
    """A new folder, which is removed on leaving, also where no more files can be opened then. Raises OSError."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix=prefix))
        for _ in range(_SPARE_DESCRIPTORS):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield Path(folder)
