"""The lock of a folder for results goes with the process that took it, whatever copies of it still live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Takes the lock, lets a copy of itself live on until its input ends, and dies without a word.
TAKE_AND_DIE = """
import os, sys
from store_core.storage.folder_lock import lock_file
assert lock_file(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT))
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("forked", flush=True)
os.kill(os.getpid(), 9)
"""
TRY = """
import os, sys
from store_core.storage.folder_lock import lock_file, unlock_file
mine = os.open(sys.argv[1], os.O_RDWR)
print(lock_file(mine), lock_file(os.open(sys.argv[1], os.O_RDWR)))
unlock_file(mine)
print(lock_file(os.open(sys.argv[1], os.O_RDWR)))
"""


def test_a_copy_of_the_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", TAKE_AND_DIE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        process.wait()  # its copy waits for the end of this process's pipe
        tried = subprocess.run([sys.executable, "-c", TRY, path], capture_output=True, text=True, check=True)
    assert tried.stdout == "True False\nTrue\n"
