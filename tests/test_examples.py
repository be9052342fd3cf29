"""The scripts in examples/ run, and end as they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.rmqctl.calls import environment

ROOT = Path(__file__).parent.parent


def test_a_crashed_store_is_mended_and_back(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "rmqctl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    (programs / "rmqctl").chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)
    work = tmp_path / "work"
    work.mkdir()
    path = f"{programs}:/usr/bin:/bin"
    words = [str(ROOT / "examples" / "after_a_crash.sh"), str(ROOT / "sample_store"), str(work)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(PATH=path, PYTHONPATH=str(ROOT)), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "== what would a broker's start do?",
        "the log would end at 567104",
        "== which topics would lose how much?",
        "topic,messages,bytes",
        "Calm_bills,247,110655",
        "Calm_steps,226,95407",
        "Calm_orders,221,106353",
        "Calm_audit,201,93668",
        "== everything as Parquet, damage included",
        "2183 rows",
        "== mend the copy, and ask again",
        "kept 2182 lost 1",
        "a broker can be started",
        "== and back",
        "as before",
    ]
