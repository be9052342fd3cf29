"""Finds calls in source code that could change a file: what only store_core/storage may do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

_OS: Final = re.compile(
    "f?chmod|[fl]?chown|copy_file_range|link|makedirs|mkdir|mkfifo|mknod|posix_fallocate|pwritev?|remove|removedirs|removexattr"
    "|renames?|replace|rmdir|sendfile|setxattr|symlink|f?truncate|unlink|utime|writev?"
)
_METHODS: Final = re.compile(
    "l?chmod|hardlink_to|mkdir|rename|rmdir|rmtree|symlink_to|tofile|touch|unlink|write_bytes|write_text"
)
_WRITING_FLAGS: Final = re.compile(r"\bO_(?!(?:RDONLY|CLOEXEC|DIRECTORY|NOATIME|NOFOLLOW|NONBLOCK)\b)\w+")
_HARMLESS_SHUTIL: Final = ("disk_usage", "get_terminal_size", "which")
_MODULES: Final = ("os", "shutil", "mmap", "io", "tempfile")
_IMPORTED: Final = frozenset(("PathLike", "StringIO", "BytesIO", "TemporaryDirectory", *_HARMLESS_SHUTIL))
_MODE: Final = re.compile(r"[rwaxbt+U]+")


def changing_nodes(tree: ast.AST) -> Iterator[ast.Call | ast.ImportFrom]:
    """Calls that change files, and imports that would hide them from this search."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    yield from (node for node in calls if _changes(node) and not _is_harmless(node))
    yield from (node for node in imports if node.module in _MODULES and not _IMPORTED.issuperset(_names(node)))


def _names(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def _is_harmless(node: ast.Call) -> bool:
    """The standard streams and nothing; scratch folders of the system's own; storage's writer and those who hand on to it."""
    text = ast.unparse(node)
    if "os.devnull" in text or "closefd=False" in text or text.startswith("os.write(2, "):
        return True
    return (
        bool(re.match(r"tempfile\.TemporaryDirectory\(|(self\.)?writer\.", text)) or "access=mmap.ACCESS_READ" in text
    )


def _changes(node: ast.Call) -> bool:
    name = ast.unparse(node.func)
    owner, _, last = name.rpartition(".")
    if name in ("open", "io.open", "os.fdopen"):
        return not _reads(_modes(node, 1))
    if name == "os.open":
        text = ast.unparse(node)
        return "O_RDONLY" not in text or bool(_WRITING_FLAGS.search(text))
    if owner in ("os", "shutil", "tempfile", "mmap"):
        return bool(_OS.fullmatch(last)) if owner == "os" else last not in _HARMLESS_SHUTIL
    if not owner:
        return False
    if last == "open":  # of a path, told by its mode; others open stores and brackets
        return not _reads([mode for mode in _modes(node, 0) if _is_mode(mode)])
    if last == "replace":  # of a path: one place to go to; of texts, times and the like more, or by name
        return len(node.args) == 1 and not node.keywords
    return bool(_METHODS.fullmatch(last))


def _modes(node: ast.Call, place: int) -> list[ast.expr]:
    return [*node.args[place : place + 1], *(word.value for word in node.keywords if word.arg == "mode")]


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_MODE.fullmatch(node.value))


def _reads(modes: list[ast.expr]) -> bool:
    """Whether these are modes for reading: one that is not written out may be any."""
    return all(_is_mode(mode) and not set("wax+") & set(ast.literal_eval(mode)) for mode in modes)
