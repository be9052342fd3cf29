"""What people forget: imports go one way, only storage writes, positions of bytes live in layout, docs say what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rmqctl.commands import built_commands
from store_core.findings import KINDS
from store_core.layout import record
from tests.changing_calls import changing_nodes

ROOT = Path(__file__).parent.parent
ROOMS = (
    "layout",
    "codec",
    "storage",
    "kernel",
    "scan",
    "derive",
    "read",
    "check",
    "broker",
    "recovery",
    "engine",
    "export",
)
SOURCES = sorted([*ROOT.glob("store_core/**/*.py"), *ROOT.glob("rmqctl/**/*.py")])
# Modules that light commands load must not pull these in when they are imported.
LIGHT_ROOMS = ("layout", "codec", "storage")
HEAVY = ("numpy", "pyarrow", "pyspark", "rich", "duckdb")


@cache
def _tree(path: Path) -> ast.Module:
    """Parse a source file, once for all tests."""
    return ast.parse(path.read_text())


def _room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "store_core" and len(parts) > 2 else parts[0]


def _imports(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node


def _top_imports(tree: ast.Module) -> Iterator[str]:
    """Modules that importing this one imports: not those in functions or under TYPE_CHECKING."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_go_downwards() -> None:
    upwards = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in SOURCES
        for module, _ in _imports(_tree(path))
        if not _goes_downwards(_room(path), module.split("."))
    ]
    assert upwards == []


def _goes_downwards(room: str, module: list[str]) -> bool:
    if module[0] == "rmqctl":
        return room == "rmqctl"
    if module[0] != "store_core" or len(module) == 1:
        return True
    if room == "layout":
        return module[1] == "layout"
    return not {room, module[1]} <= {*ROOMS} or ROOMS.index(module[1]) <= ROOMS.index(room)


def test_no_module_imports_itself_through_others() -> None:
    """Imports at the top of modules form no circle, inside a room either."""
    modules = {_module(path): path for path in SOURCES}
    imports = {name: {*_top_modules(_tree(path), modules)} - {name} for name, path in modules.items()}
    while leaves := {name for name, others in imports.items() if not others & imports.keys()}:
        imports = {name: others for name, others in imports.items() if name not in leaves}
    assert imports == {}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _top_modules(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules of ours that importing this one imports: of ``from package import name`` the name, where that is a module."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_readme(room: str) -> None:
    page = (ROOT / "store_core" / room / "README.md").read_text()
    assert page.startswith(f"# {room}: ")
    assert len(page.splitlines()) <= 60


def test_the_readme_of_recovery_names_every_module() -> None:
    folder = ROOT / "store_core" / "recovery"
    page = (folder / "README.md").read_text()
    missing = [path.stem for path in folder.glob("[a-z]*.py") if f"`{path.stem}`" not in page]
    assert missing == []


def test_the_reference_of_the_kernel_is_only_its_fallback() -> None:
    """Nothing outside the kernel imports it, and the kernel's own modules only where the compiled one is not there."""
    for path in SOURCES:
        if "reference" in path.parts:
            continue
        used = [m for m, _ in _imports(_tree(path)) if m.startswith("store_core.kernel.reference")]
        assert not used or path.parent.name == "kernel", path
        assert not [m for m in _top_imports(_tree(path)) if m.startswith("store_core.kernel.reference")], path


def test_only_storage_writes_files() -> None:
    writing = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)[:80]}"
        for path in SOURCES
        if _room(path) not in ("storage", "export")  # an export writes its own destination, never a store
        for node in changing_nodes(_tree(path))
    ]
    assert writing == []


def test_store_core_prints_nothing() -> None:
    for path in SOURCES:
        if _room(path) != "rmqctl":
            calls = [n for n in ast.walk(_tree(path)) if isinstance(n, ast.Call)]
            assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], path


def test_magic_numbers_have_one_home() -> None:
    magics = {value & 0xFFFFFFFF for value in record.MAGICS} | set(record.MAGICS)
    for path in SOURCES:
        if _room(path) == "layout":
            continue
        for node in ast.walk(_tree(path)):
            value = node.value if isinstance(node, ast.Constant) else None
            assert not (isinstance(value, int) and value in magics), f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]  # constants have lines


_NO_FIRST_WORD = {"As", "How", "That", "What", "Where", "Whether", "Which", "Who", "Whoever"}
_NO_WORD = re.compile(r"\b(anew|as ever|in front of|nobody|whoever)\b", re.IGNORECASE)


def test_docstrings_begin_with_what_is_done_or_what_it_is() -> None:
    """CONTRIBUTING.md, rules of the language. The help of a command is its function's docstring, and not looked at."""
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in SOURCES
        for text in _docstrings(path)
        if text.split()[0].rstrip(":,") in _NO_FIRST_WORD or _NO_WORD.search(text)
    ]
    assert wrong == []


def test_messages_use_plain_words() -> None:
    """What users read: findings, notes, errors, help and the meanings of columns."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value[:80]}"
        for path in SOURCES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if _NO_WORD_OF_A_MESSAGE.search(node.value) and node.value not in _raw_docstrings(path)
    ]
    assert wrong == []


_NO_WORD_OF_A_MESSAGE = re.compile(rf"{_NO_WORD.pattern}|\b(behind|told|somebody)\b", re.IGNORECASE)


@cache
def _raw_docstrings(path: Path) -> frozenset[str]:
    nodes = [n for n in ast.walk(_tree(path)) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    texts = {text for node in nodes if (text := ast.get_docstring(node, clean=False)) is not None}
    return frozenset(texts) if _room(path) != "rmqctl" else frozenset(t for t in texts if "Example:" not in t)


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and "\nExample: rmqctl " not in text:
                yield text


def test_functions_fit_a_screen() -> None:
    """At most 60 lines of statements; ruff bounds the ways through one."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef) and _lines_of_statements(node) > 60
    ]
    assert long == []


def _lines_of_statements(function: ast.FunctionDef) -> int:
    """The lines of its body without a docstring: the options of a command are a table, not statements."""
    first = function.body[1 if ast.get_docstring(function) is not None and len(function.body) > 1 else 0]
    assert function.end_lineno is not None
    return function.end_lineno - first.lineno + 1


@pytest.mark.parametrize("room", LIGHT_ROOMS)
def test_light_rooms_stay_light(room: str) -> None:
    for path in (ROOT / "store_core" / room).glob("*.py"):
        heavy = [m for m in _top_imports(_tree(path)) if m.split(".")[0] in HEAVY]
        assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"


def test_every_command_of_the_table_has_a_help_with_an_example() -> None:
    for name, entry in built_commands().items():
        source = (ROOT / "rmqctl" / "commands" / f"{entry.module}.py").read_text()
        assert f"Example: rmqctl {name}" in source, name
    modules = {path.stem for path in (ROOT / "rmqctl" / "commands").glob("*.py")} - {"__init__"}
    assert modules == {entry.module for entry in built_commands().values()}


def test_the_reference_pages_say_what_the_code_says() -> None:
    result = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_lock_of_ci_pins_all_that_is_asked_for() -> None:
    """CI installs ``.ci/requirements.lock``: `make lock` renews it after a change of dependencies."""
    lock = (ROOT / ".ci" / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    for text in [*project["dependencies"], *extras]:
        asked = Requirement(text)
        name = asked.name.lower()
        assert name == "rmqctl" or (name in pinned and pinned[name] in asked.specifier), f"{text}: run `make lock`"
    base = re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert set(base) <= set(pinned.items())
    assert "://" not in lock


def test_every_code_is_documented_and_used() -> None:
    page = (ROOT / "docs" / "findings.md").read_text()
    code = "\n".join(path.read_text() for path in SOURCES if path.parent.name != "kinds")
    for name in KINDS:
        assert f"| {name} | " in page
        assert f'"{name}"' in code, f"nothing ever finds {name}"


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    for path in SOURCES:
        assert not marks.search(path.read_text().replace("SCHEDULE_TOPIC_XXXX", "")), path
