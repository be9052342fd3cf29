"""The rule that only storage writes is no better than what it can see."""

from __future__ import annotations

import ast

import pytest

from tests.changing_calls import changing_nodes


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'w')", "open(path, 'r+b')", "open(path, mode='a')", "open(path, mode)", "io.open(path, 'xb')",
        "os.fdopen(fd, 'wb')", "path.open('w')", "Path(name).open(mode='ab')", "(root / 'x').open('r+')",
        "os.open(path, os.O_RDWR)", "os.open(path, os.O_WRONLY | os.O_CREAT)", "os.open(path, os.O_RDONLY | os.O_TRUNC)",
        "os.open(path, flags)", "os.unlink(path)", "os.rename(a, b)", "os.replace(a, b)", "os.makedirs(path)", "os.truncate(path, 0)",
        "os.write(fd, data)", "os.utime(path)", "os.link(a, b)", "shutil.rmtree(path)", "shutil.copyfile(a, b)", "shutil.move(a, b)",
        "tempfile.NamedTemporaryFile()", "mmap.mmap(fd, 0)", "path.write_bytes(b'')", "path.write_text('')", "path.unlink()",
        "path.rename(other)", "path.replace(other)", "path.touch()", "path.mkdir()", "path.rmdir()", "path.symlink_to(x)",
        "path.hardlink_to(x)", "path.chmod(0)", "array.tofile(path)", "from os import unlink", "from shutil import rmtree",
    ],
)  # fmt: skip
def test_what_changes_files_is_found(source: str) -> None:
    assert len(list(changing_nodes(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "open(path)", "open(path, 'rb')", "open(open_read_only(path), 'rb')", "path.open()", "path.open('rb')", "Store.open(root)",
        "Store.open(root, settings)", "self.open(depth)", "os.open(path, os.O_RDONLY | os.O_CLOEXEC)", "open(os.devnull, 'w')",
        "os.open(os.devnull, os.O_WRONLY)", "os.write(2, b'')", "text.replace('a', 'b')", "time.replace(tzinfo=None)",
        "replace(row, size=1)", "os.path.exists(path)", "shutil.which('java')", "tempfile.TemporaryDirectory()",
        "mmap.mmap(fd, 0, access=mmap.ACCESS_READ)", "self.writer.unlink(path)", "writer.mkdir(path)",
    ],
)  # fmt: skip
def test_what_reads_is_not(source: str) -> None:
    assert list(changing_nodes(ast.parse(source))) == []
