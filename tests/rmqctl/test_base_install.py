"""The base install: what looks, checks, mends, puts and dumps needs no library of an extra, and what needs one says how to get it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from store_core import extras
from tests import stores
from tests.rmqctl.calls import ROOT, environment

_WITHOUT_EXTRAS = """
import contextlib, io, json, sys
from store_core.extras import BROUGHT_BY

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in BROUGHT_BY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
from rmqctl.app import main

told = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        told.append([main(words), err.getvalue()])
print(json.dumps(told))
"""
_FINDS: dict[str, int] = {
    "info": 0,
    "log --all": 3,
    "dump-cq --all": 0,
    "dump-index": 0,
    "checkpoint": 0,
    "config": 0,
    "lag": 0,
    "pull Calm_steps 2": 0,
    "get 0": 0,
    "query-key Calm_steps CK200366": 3,
    "trace CK200366": 3,
    "tail": 0,
    "verify-crc": 3,
    "check": 3,
    "explain L001": 0,
    "completion bash": 0,
    "recover --predict": 3,
    "truncate 567104": 3,
    "expire --free 100k": 3,
    "rebuild all": 3,
    "checkpoint --rebuild": 3,
    "recover --apply --report {report}": 0,
    "put Calm_steps x": 0,
    "undo --list": 0,
}
_NEED_AN_EXTRA = {
    ("export", "{out}"): ("export", "pyarrow", "export"),
    ("export", "{out}", "--format", "delta"): ("--format delta", "deltalake", "lake"),
    ("export", "{out}", "--format", "iceberg"): ("--format iceberg", "pyiceberg", "lake"),
    ("export", "{out}", "--spark"): ("--spark", "pyspark", "spark"),
    ("verify-crc", "--spark"): ("--spark", "pyspark", "spark"),
    ("sql", "select 1"): ("sql", "duckdb", "sql"),
    ("sql", "--tables"): ("sql", "duckdb", "sql"),
    ("info", "-s", "s3://bucket/store"): ("a store in an object store", "pyarrow", "export"),
    ("recover", "--sibling", "s3://bucket/store"): ("a store in an object store", "pyarrow", "export"),
}


def run_without_extras(calls: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Exit code and stderr of each call, all in one process that cannot import what extras bring."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, json.dumps(calls)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, err) for code, err in json.loads(done.stdout)]


def test_every_command_of_the_base_does_without_the_extras(tmp_path: Path) -> None:
    root = stores.copy_store(ROOT / "sample_store", tmp_path / "store")
    words = [text.format(report=tmp_path / "report.html").split() for text in _FINDS]
    told = run_without_extras([[*each, "-s", str(root), "-q", "-o", "json"] for each in words])
    assert dict(zip(_FINDS, (code for code, _ in told), strict=True)) == _FINDS
    assert "ModuleNotFoundError" not in "".join(err for _, err in told)
    assert (tmp_path / "report.html").exists()


def test_what_needs_an_extra_names_the_command_that_installs_it(tmp_path: Path) -> None:
    store = str(ROOT / "sample_store")
    calls = [[word.format(out=tmp_path / "out") for word in words] for words in _NEED_AN_EXTRA]
    told = run_without_extras([words if "-s" in words else [*words, "-s", store] for words in calls])
    for (code, err), (what, module, extra) in zip(told, _NEED_AN_EXTRA.values(), strict=True):
        assert (code, err.count("\n")) == (1, 1)
        assert err.startswith(f"error: {what} needs the package {module}: run `{sys.executable} -m pip install ")
        assert f"[{extra}]" in err
    assert not (tmp_path / "out").exists()


class _Installed:
    def __init__(self, direct_url: object) -> None:
        self._text = None if direct_url is None else json.dumps(direct_url)

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._text


@pytest.mark.parametrize(
    ("direct_url", "words"),
    [
        (None, "'rmqctl[sql]'"),
        ({"url": "file://{here}", "dir_info": {}}, "'{here}[sql]'"),
        ({"url": "file://{here}", "dir_info": {"editable": True}}, "-e '{here}[sql]'"),
        ({"url": "file://{here}/a%20b.whl", "archive_info": {}}, "'{here}/a b.whl[sql]'"),
        ({"url": "file://{here}/gone.whl", "archive_info": {}}, "'rmqctl[sql]'"),
        ({"url": "https://h/r.whl", "archive_info": {}}, "'rmqctl[sql] @ https://h/r.whl'"),
        (
            {"url": "https://h/r", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "'rmqctl[sql] @ git+https://h/r@c0ffee'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_program_came_from(
    direct_url: object, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b.whl").touch()
    here = json.loads(json.dumps(direct_url).replace("{here}", str(tmp_path)))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: _Installed(here))
    expected = f"run `{sys.executable} -m pip install {words.replace('{here}', str(tmp_path))}`"
    assert extras.to_install("duckdb") == expected


def test_a_checkout_on_the_path_is_installed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def nothing(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    assert extras.to_install("pyarrow").endswith(f" -m pip install '{ROOT}[export]'`")
