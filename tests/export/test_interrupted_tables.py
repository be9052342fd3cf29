"""An export of tables that is interrupted: nothing is left, which is said, and the same command begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from rmqctl import signals
from rmqctl.app import main
from store_core.export import tables_export
from tests.conftest import GoldenStore

What = Literal["queues", "index", "stats"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), signals.Terminated(15)], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("what", ["queues", "index", "stats"])
def test_nothing_is_left(
    what: What,
    error: BaseException,
    golden: GoldenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["export", str(tmp_path / "out"), "--what", what, "-s", str(golden("load-533")), "--jobs", "1"]

    def interrupted(*_: object) -> object:
        """All files are written, none is published."""
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(tables_export, "_told", interrupted)
        assert main(words) in (130, 143)
    assert "note: nothing is left of what was done: the same command begins anew" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(words) == 0
    assert (tmp_path / "out/manifest.json").exists()
