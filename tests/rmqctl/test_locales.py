"""Words that are typed in UTF-8 mean the same in every locale that knows nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import StoreCopy
from tests.rmqctl.calls import ROOT, Result, command, environment

LOCALES = {
    "UTF-8": {"LC_ALL": "C.UTF-8"},
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0"},
    "ASCII where Python says UTF-8": {"LC_ALL": "C", "PYTHONUTF8": None},
}


def typed(locale: str, *words: object) -> Result:
    done = subprocess.run(
        command(*words), cwd=ROOT, env=environment(**LOCALES[locale]), capture_output=True, timeout=60, check=False
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("locale", LOCALES)
def test_words_beyond_ascii(locale: str, store_copy: StoreCopy) -> None:
    root = store_copy("clean-497")
    where = ("-s", root, "-o", "json")
    put = typed(
        locale, "put", "T", "жé", "--keys", "ключ", "--tags", "тэг", "--create-topic", "--queue-id", "0", *where
    )
    assert put.code == 0, put.err
    for words in (
        ("query-key", "T", "ключ"),
        ("query-key", "T", "ключ", "--source", "scan"),
        ("pull", "T", "0", "--tag", "тэг"),
    ):
        found = typed(locale, *words, *where)
        assert [(m["keys"], m["tags"], m["body"]) for m in found.json["messages"]] == [(["ключ"], "тэг", "жé")], words
    nothing = typed(locale, "pull", "Tё", "0", *where)
    assert (nothing.code, nothing.json["topic"], nothing.json["status"]) == (0, "Tё", "NO_MATCHED_LOGIC_QUEUE")
    assert "no queue 0 of topic 'Tё'" in typed(locale, "dump-cq", "Tё", "0", "-s", root).err
    assert "ё" in typed(locale, "sql", "select 'ё' a", "-s", root).out


@pytest.mark.parametrize("locale", LOCALES)
def test_a_folder_beyond_ascii(locale: str, store_copy: StoreCopy, tmp_path: Path) -> None:
    root = store_copy("clean-497")
    root.rename(tmp_path / "хранилище")
    told = typed(locale, "info", "-s", tmp_path / "хранилище", "-o", "json")
    assert (told.code, str(tmp_path / "хранилище") in told.out) == (0, True)
