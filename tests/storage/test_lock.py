"""The lock that brokers take too, and how a store at work is noticed without touching it."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store_core.errors import FailedError, StoreInUseError
from store_core.recovery.apply.apply import apply
from store_core.recovery.plans.draft import Draft
from store_core.storage.live import assert_not_live, is_live, processes_with_files_open
from store_core.storage.lock import StoreLock
from store_core.storage.writer import Writer
from tests.recording import tree
from tests.recovery.sample import make_tree

pytestmark = pytest.mark.beside
SEGMENT = "commitlog/00000000000000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "store")


@contextmanager
def other_process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another Python that runs ``code``, says that it is ready, and lives until the block ends."""
    script = f"import sys, os, fcntl, mmap\n{code}\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    words = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.stdin.close()
            process.wait()


BROKERS_LOCK = "file = open(sys.argv[1] + '/lock', 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
WRITE_OPEN = "file = open(sys.argv[1], 'r+b')"
READ_OPEN = "file = open(sys.argv[1], 'rb'); m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)"
MAPPED = (
    "fd = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(fd, 0); os.close(fd)\n"
    "for name in os.listdir('/proc/self/fd'):\n"
    "    if int(name) > 2:\n"
    "        try: os.close(int(name))\n"
    "        except OSError: pass"
)


def test_the_lock_keeps_others_out_until_it_is_released(root: Path) -> None:
    attempt = "file = open(sys.argv[1] + '/lock', 'r+b')\ntry: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\nexcept OSError: sys.exit(7)"
    words = [sys.executable, "-c", f"import sys, fcntl\n{attempt}", str(root)]
    with StoreLock(root):
        assert subprocess.run(words, check=False).returncode == 7
    assert subprocess.run(words, check=False).returncode == 0


def test_the_second_one_is_refused_and_told_who_has_it(root: Path) -> None:
    with other_process(BROKERS_LOCK, root) as process, pytest.raises(StoreInUseError, match=str(process.pid)):
        StoreLock(root).acquire()
    with StoreLock(root) as lock:
        assert lock.held


def test_two_rmqctl_at_once(root: Path) -> None:
    first = "from store_core.storage.lock import StoreLock\nlock = StoreLock(sys.argv[1]).acquire()"
    draft = Draft(root)
    draft.write_range(SEGMENT, 0, b"x")
    before = tree(root)
    with other_process(first, root), pytest.raises(StoreInUseError):
        apply(draft.plan("recover"), root)
    assert tree(root) == before
    assert not (root / ".rmqctl").exists()


def test_one_process_can_not_lock_twice_and_so_lose_the_lock(root: Path) -> None:
    with StoreLock(root):
        with pytest.raises(StoreInUseError, match="by this process"):
            StoreLock(root).acquire()
        assert is_live(root).lock_holder is None
        with pytest.raises(StoreInUseError), other_process("pass"):
            StoreLock(root).acquire()
        attempt = f"try:\n {BROKERS_LOCK}\nexcept OSError: sys.exit(7)"
        assert subprocess.run([sys.executable, "-c", f"import sys, fcntl\n{attempt}", str(root)]).returncode == 7


def test_a_missing_lock_is_made_and_the_folder_keeps_its_time(root: Path) -> None:
    (root / "lock").unlink()
    os.utime(root, ns=(5, 5))
    with StoreLock(root) as lock:
        assert lock.created
        assert (root / "lock").read_bytes() == b"lock"
    assert root.stat().st_mtime_ns == 5


def test_a_lock_made_by_another_one_at_that_moment_counts_as_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin at once: whoever gets the lock takes the file away again with the change."""
    (root / "lock").unlink()
    create = Writer.create

    def just_made(writer: Writer, path: str, *content: bytes) -> int:
        (root / path).write_bytes(b"lock")
        return create(writer, path, *content)

    monkeypatch.setattr(Writer, "create", just_made)
    with StoreLock(root) as lock:
        assert lock.created


def test_an_existing_lock_is_not_touched(root: Path) -> None:
    before = tree(root)
    with StoreLock(root) as lock:
        assert not lock.created
    assert tree(root) == before


def test_a_lock_that_is_a_link_is_refused(root: Path) -> None:
    (root / "lock").unlink()
    (root / "lock").symlink_to(root / "checkpoint")
    with pytest.raises(FailedError, match="cannot lock"):
        StoreLock(root).acquire()


def test_probing_changes_nothing(root: Path) -> None:
    (root / "lock").unlink()
    before = tree(root)
    state = is_live(root)
    assert not state.live
    assert tree(root) == before


def test_probing_sees_who_holds_the_lock(root: Path) -> None:
    with other_process(BROKERS_LOCK, root) as process:
        state = is_live(root)
        assert state.live
        assert state.lock_holder is not None
        assert state.lock_holder.pid == process.pid
        assert "python" in state.lock_holder.command
    assert not is_live(root).live


@pytest.mark.parametrize("how", [WRITE_OPEN, MAPPED], ids=["open", "mapped"])
def test_who_could_write_makes_a_store_live(root: Path, how: str) -> None:
    """A broker in the middle of its start has no lock yet, but its segments open and mapped."""
    draft = Draft(root)
    draft.remove_file("abort")
    before = tree(root)
    with other_process(how, root / SEGMENT) as process:
        found = processes_with_files_open(root)
        assert [(file.pid, file.path, file.writable) for file in found] == [(process.pid, str(root / SEGMENT), True)]
        assert is_live(root).live
        with pytest.raises(StoreInUseError, match=str(process.pid)):
            assert_not_live(root)
        with pytest.raises(StoreInUseError):
            apply(draft.plan("recover"), root)
        assert tree(root) == before
    assert processes_with_files_open(root) == []
    assert_not_live(root)


def test_who_only_reads_does_not(root: Path) -> None:
    with other_process(READ_OPEN, root / SEGMENT):
        assert [file.writable for file in processes_with_files_open(root)] == [False]
        assert not is_live(root).live
        assert_not_live(root)


def test_a_file_open_under_another_name_is_found_by_its_inode(root: Path, tmp_path: Path) -> None:
    """As a container sees the store under a path of its own."""
    os.link(root / SEGMENT, tmp_path / "elsewhere")
    for how in (WRITE_OPEN, MAPPED):
        with other_process(how, tmp_path / "elsewhere"):
            assert [file.writable for file in processes_with_files_open(root)] == [True]


def test_own_open_files_do_not_count(root: Path) -> None:
    with (root / SEGMENT).open("r+b") as file, mmap.mmap(file.fileno(), 0):
        fcntl.lockf(file, fcntl.LOCK_SH)
        assert processes_with_files_open(root) == []
