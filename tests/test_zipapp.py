"""What the zipapp does before the program begins: where it unpacks, and whom it trusts there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

MAIN = Path(__file__).parents[1] / "packaging" / "zipapp_main.py"
PROGRAM = "def main():\n    print(__file__)\n    return 3\n"


def packed(folder: Path, python: str = f"{sys.version_info[0]}.{sys.version_info[1]}") -> Path:
    """A zipapp with the real beginning and a program that says where it lies."""
    program = folder / "source" / "packed" / "rmqctl"
    program.mkdir(parents=True)
    (program / "__init__.py").touch()
    (program / "app.py").write_text(PROGRAM)
    text = MAIN.read_text().replace("@PYTHON@", python).replace("@ID@", "feed")
    (folder / "source" / "__main__.py").write_text(text)
    zipapp.create_archive(folder / "source", folder / "rmqctl.pyz")
    return folder / "rmqctl.pyz"


def run(file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, "-I", file], cwd="/", env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return packed(tmp_path)


def test_it_unpacks_once_into_a_folder_of_its_users_own(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "rmqctl" / "zipapp-feed"
    for _ in range(2):
        done = run(file, tmp_path / "cache")
        assert (done.returncode, done.stdout, done.stderr) == (3, f"{folder}/rmqctl/app.py\n", "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.parent.iterdir()] == ["zipapp-feed"]


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_what_others_may_have_put_there_is_not_run(kind: str, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "rmqctl" / "zipapp-feed"
    planted = tmp_path / "planted"
    (planted / "rmqctl").mkdir(parents=True)
    (planted / "rmqctl" / "__init__.py").touch()
    (planted / "rmqctl" / "app.py").write_text("def main():\n    return 66\n")
    folder.parent.mkdir(parents=True)
    if kind == "open":
        planted.rename(folder)
        folder.chmod(0o777)
    elif kind == "link":
        folder.symlink_to(planted)
    else:
        folder.touch()
    done = run(file, tmp_path / "cache")
    assert (done.returncode, done.stderr) == (3, "")
    assert not Path(done.stdout.strip()).exists()  # a folder for this call alone, removed behind it


def test_where_no_cache_can_be_written_each_call_unpacks_for_itself(file: Path) -> None:
    done = run(file, Path("/proc/nothing"))
    assert (done.returncode, done.stderr) == (3, "")
    assert not Path(done.stdout.strip()).exists()


def test_another_python_is_told_which_one_the_file_is_for(tmp_path: Path) -> None:
    done = run(packed(tmp_path, python="3.5"), tmp_path / "cache")
    assert done.returncode == 1
    assert done.stderr.startswith("error: this file is for Python 3.5, not ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists()
