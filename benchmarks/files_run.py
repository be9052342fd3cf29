"""Count the files whose functions run when a command does: how much of the house one has to know for it.

    python -m benchmarks.files_run [COMMAND WORD ...]

Without words, `recover` and `log` of sample_store. Files of this project only; what runs while a module is imported does not count.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = tuple(str(ROOT / name) + "/" for name in ("rmqctl", "store_core"))


def files_run(words: list[str]) -> Counter[str]:
    """Run a command in this process. Return how many functions of each file ran."""
    from rmqctl import app

    ran: set[tuple[str, str, int]] = set()

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOMS) and not _is_imported(frame):
            ran.add((code.co_filename, code.co_name, code.co_firstlineno))

    sys.argv = ["rmqctl", *words]
    threading.setprofile(on_call)
    sys.setprofile(on_call)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        app.main()
    sys.setprofile(None)
    return Counter(name.removeprefix(f"{ROOT}/") for name, _, _ in ran)


def _is_imported(frame: FrameType | None) -> bool:
    """Return True for a module's own code and what it calls, such as the bodies of its classes."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(ROOMS):
            return True
        frame = frame.f_back
    return False


def main() -> None:
    if sys.argv[1:]:
        counts = files_run(sys.argv[1:])
        for name, number in sorted(counts.items()):
            print(f"{number:4} {name}", file=sys.stderr)
        print(f"{sys.argv[1]}: {sum(counts.values())} functions in {len(counts)} files", file=sys.stderr)
        return
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        store = shutil.copytree(ROOT / "sample_store", Path(folder) / "store")
        for command in ("recover", "log"):
            words = [sys.executable, "-m", "benchmarks.files_run", command, "-s", str(store)]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
            print(done.stderr.splitlines()[-1])


if __name__ == "__main__":
    main()
