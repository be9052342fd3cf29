"""The sessions shown in the pages of docs/ are run again and must say what the pages say; links and names of modules must exist.

A block marked ``console`` holds commands behind ``$`` and what they print, stdout and stderr together, through a pipe. A page is
one shell session. ``/data/rocketmq`` stands for a folder of the test. A line ``...`` stands for any lines, ``...`` at the end of a
line for the rest of it; a comment ``<!-- $ command -->`` is run and not shown. A block marked ``python`` is a program, and a block
marked ``text`` behind it what it prints; the programs of docs/pipeline.md are cells of one, so that Spark is started once. What differs from run to run (ids made from
modification times, times of the day, durations) is compared by its form only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from benchmarks import contest, report
from rmqctl.commands import built_commands
from store_core.export.runners.java import java_home
from tests.export.spark_java import WITH_CLASSES
from tests.rmqctl.calls import environment
from tests.rmqctl.shell import command_for_shell

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = (
    "guide.md",
    "recovery.md",
    "recovery_rules.md",
    "loss_report.md",
    "sql.md",
    "export.md",
    "walk.md",
    "pipeline.md",
)
IN_CELLS: Final = "pipeline.md"
MARKDOWN: Final = sorted(
    path.relative_to(ROOT)
    for folder in (".", "docs", "store_core/*", "tests/*", "rmqctl", "benchmarks", "examples")
    for path in ROOT.glob(f"{folder}/*.md")
)
CODE: Final = [
    path
    for folder in ("rmqctl", "store_core", "tests", "benchmarks", "docs", "examples", "packaging", "*.py")
    for top in ROOT.glob(folder)
    for path in ([top] if top.is_file() else top.rglob("*.*"))
]
SHOWN_FOLDER: Final = "/data/rocketmq"
END: Final = "\x1e"  # parts the outputs of a session's commands
_DEADLINE_SECONDS: Final = 240

_BLOCK: Final = re.compile(
    r"^```console\n(?P<session>.*?)^```$|^<!-- \$ (?P<hidden>.*?) -->$"
    r"|^```python\n(?P<program>.*?)^```$(?:\n\n```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_VARIES: Final = (
    (re.compile(r"\b(\d{4}-[a-z]+)-[0-9a-f]{8}\b"), r"\1-ID"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "PLAN"),
    (re.compile(r"\b(?!2026-11-21T02:18:3)\d{4}-\d\d-\d\dT[\d:.]{12}Z"), "TIME"),
    (re.compile(r"\b(?!17952275)1[789]\d{11}\b"), "MS"),
    (re.compile(r'("?(?:seconds|bytes_per_second|bytes_written)"?:? +)[\d.]+'), r"\1N"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page and what the page says it prints; None where it is not shown."""

    command: str
    output: str | None
    is_cell: bool = False  # of the Python program that the cells around it make up


def session(page: str) -> list[Shown]:
    """The commands of a page, in order."""
    found = []
    for block in _BLOCK.finditer((DOCS / page).read_text()):
        if block["hidden"]:
            found.append(Shown(block["hidden"], None))
            continue
        if block["program"] and page == IN_CELLS:
            found.append(Shown(block["program"], block["printed"] or "", is_cell=True))
            continue
        if block["program"]:
            found.append(Shown(f"python3 - <<'END'\n{block['program']}END", block["printed"] or ""))
            continue
        for command in re.split(r"^\$ ", block["session"], flags=re.MULTILINE)[1:]:
            typed, _, output = command.partition("\n")
            found.append(Shown(typed, output))
    return found


def run(commands: list[Shown], folder: Path) -> list[str]:
    """Run a session in one shell, in a folder that holds ``sample_store``; gives what each command printed."""
    with command_for_shell() as rmqctl:
        return _run(commands, folder, rmqctl)


def _run(commands: list[Shown], folder: Path, rmqctl: str) -> list[str]:
    program = f'rmqctl() {{ {rmqctl} "$@"; }}\npython3() {{ "$PYTHON" "$@"; }}\nexec 2>&1\n'
    for is_cell, group in groupby(commands, key=lambda shown: shown.is_cell):
        texts = [shown.command.replace(SHOWN_FOLDER, str(folder)) for shown in group]
        if is_cell:
            texts = ["python3 - <<'END'\n" + f"print({END!r}, end='', flush=True)\n".join(texts) + "END"]
        for text in texts:
            program += f"{text}\nstatus=$?; printf '{END}'; (exit $status)\n"
    done = subprocess.run(
        ["bash", "-c", program],
        cwd=folder,
        env=environment(PYTHON=sys.executable, PYTHONPATH=str(ROOT), HOME=str(folder), **_for_spark()),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    return done.stdout.decode().split(END)[: len(commands)]


def _for_spark() -> dict[str, str]:
    """A Java if need be, this Python for executors, and no name of this machine's that may not be known."""
    home = java_home()
    java = {"JAVA_HOME": str(home)} if home is not None else {}
    return {**java, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": WITH_CLASSES}


def normal(text: str, folder: Path | None = None) -> str:
    """Text without what differs from run to run, nor blanks at the ends of lines."""
    if folder is not None:
        text = text.replace(str(folder), SHOWN_FOLDER)
    for pattern, form in _VARIES:
        text = pattern.sub(form, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def fits(shown: str, printed: str) -> bool:
    """Whether the printed text is the shown one, both normal; ``...`` as said above."""
    lines = []
    for line in shown.splitlines():
        if line == "...":
            lines.append(r"(?:.*\n)*?")
        elif line.endswith("..."):
            lines.append(re.escape(line.removesuffix("...")) + r".*\n")
        else:
            lines.append(re.escape(line) + r"\n")
    return re.fullmatch("".join(lines), f"{printed}\n" if printed else "") is not None


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.spark) if page == IN_CELLS else page for page in PAGES]
)
def test_pages_show_what_the_program_prints(page: str, tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "sample_store", tmp_path / "sample_store", copy_function=shutil.copyfile
    )  # as old as now, as in a checkout
    commands = session(page)
    outputs = run(commands, tmp_path)
    assert len(outputs) == len(commands), f"the session ended early, after {outputs[-1]!r}"
    for shown, output in zip(commands, outputs, strict=True):
        if shown.output is not None:
            expected, printed = normal(shown.output), normal(output, tmp_path)
            assert fits(expected, printed), f"$ {shown.command}\n{printed}\n--- but the page says\n{expected}"


def test_the_guide_shows_every_command() -> None:
    ran = " ".join(shown.command for shown in session("guide.md"))
    assert [name for name in built_commands() if f"rmqctl {name}" not in ran] == []


@pytest.mark.parametrize("page", MARKDOWN, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = _without_blocks(ROOT / page)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not link.startswith("http") and (not target.exists() or (anchor and anchor not in _anchors(target))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", MARKDOWN, ids=str)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    """A room's README names modules of the room or, with its folder, of another one."""
    room = ROOT / page.parent if page.name == "README.md" else ROOT
    named = set(re.findall(r"`([a-z_./]+\.(?:py|rs|sh))`", _without_blocks(ROOT / page)))
    assert {
        name
        for name in named
        if not any(path.as_posix().endswith(f"/{name}") for path in CODE if "/" in name or path.is_relative_to(room))
    } == set()


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", *(str(p) for p in MARKDOWN if p.match("store_core/*/README.md"))]
)
def test_every_name_of_a_room_exists(page: str) -> None:
    """A word in code marks is a module, a folder or defined: below the room, for the page of the architecture anywhere."""
    is_room = page.endswith("README.md")
    folder = (ROOT / page).parent if is_room else ROOT / "store_core"
    words = {
        word
        for word in re.findall(r"`([a-z]\w+)(?:\.\w+|/)?`", _without_blocks(ROOT / page))
        if is_room or "_" in word  # other words of the architecture may be commands and files of a store
    }
    modules = {path.stem for path in CODE if path.is_relative_to(folder)}
    folders = {path.parent.name for path in CODE if path.is_relative_to(ROOT / "store_core")}
    source = "\n".join(path.read_text() for path in CODE if path.suffix == ".py" and path.is_relative_to(folder))
    assert words - modules - folders - set(re.findall(r"\b(?:def|class) (\w+)", source)) - _OTHER_WORDS == set()


_OTHER_WORDS: Final = {"keep", "write"}  # a policy, an attribute


def _without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_speed_is_what_the_results_say() -> None:
    assert report.PAGE.read_text() == report.page(contest.load_results()), "run python -m benchmarks.report"


@pytest.mark.parametrize(
    ("shown", "printed", "fit"),
    [
        ("one\n...\nfour", "one\ntwo\nthree\nfour", True),
        ("one\n...\nfour", "one\ntwo\nthree", False),
        ("one t...", "one two", True),
        ("one", "one\ntwo", False),
        ("one", "", False),
        ("", "one", False),
        ("", "", True),
    ],
)
def test_shown_text_fits_what_it_says(shown: str, printed: str, fit: bool) -> None:
    assert fits(shown, printed) is fit
