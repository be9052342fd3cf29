"""`rmqctl doctor`, and the last lines of `recover`: one verdict."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import exit_codes
from tests import stores
from tests.beside import at_work_on
from tests.damage import Damageable
from tests.rmqctl.calls import call

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]


def _harm(store: Damageable, case: str) -> None:
    if case == "flip":
        number = next(n for n, m in enumerate(store.truth["messages"]) if n > 1200 and m["bodyLength"])
        store.flip(number, "body")
    elif case == "begin":
        store.lose(0)
    elif case == "log":
        for path in store.segments:
            path.unlink()
    elif case == "queue":
        next((store.root / "consumequeue").glob("*/*/*")).unlink()


CASES = [  # exit, damage, level, the next command
    ("clean", "none", "green", None),
    ("crash", "none", "yellow", "recover"),
    ("crash", "flip", "red", "recover"),
    ("clean", "flip", "yellow", "recover"),
    ("clean", "begin", "yellow", "explain"),
    ("clean", "queue", "red", "recover"),
    ("crash", "log", "red", "doctor"),
]


@pytest.mark.parametrize(("exit", "harm", "level", "command"), CASES, ids=["-".join(case[:2]) for case in CASES])
def test_one_verdict_for_both(
    exit: str, harm: str, level: str, command: str | None, damageable: DamageableOf, settings_of: SettingsOf
) -> None:
    store, config = damageable("load-533", exit), settings_of("load-533")
    _harm(store, harm)
    before = stores.snapshot(store.root)
    options = ("-s", store.root, "-c", config)
    doctor, recover = call("doctor", *options, "-o", "json"), call("recover", *options, "-o", "json")
    verdict = doctor.json["verdict"]
    assert recover.json["verdict"] == verdict
    assert (verdict["level"], verdict["next"] and verdict["next"][1]) == (level, command)
    assert doctor.code == (exit_codes.OK if level == "green" else exit_codes.FINDINGS)
    if command in ("recover", "doctor"):
        assert str(store.root) in verdict["next"]
    shown, told = call("doctor", *options).out, call("recover", *options).out
    assert shown.startswith(level.upper())
    last = shown.splitlines()[-3:]
    assert [line.split()[0] for line in last] == ["state", "loss", "next"]
    assert told.splitlines()[-3:] == last
    assert len(shown.splitlines()) <= 24
    assert stores.snapshot(store.root) == before


def test_the_next_command_does_what_is_to_be_done(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """Typed as it stands it leaves a store that is green."""
    store, config = damageable("load-533", "crash"), settings_of("load-533")
    _harm(store, "flip")
    words = call("doctor", "-s", store.root, "-c", config).out.splitlines()[-1].removeprefix("next")
    applied = call(*shlex.split(words)[1:])
    assert applied.code == exit_codes.OK
    assert "Verdict: green" in applied.out
    assert call("doctor", "-s", store.root, "-c", config, "-o", "json").json["verdict"]["level"] == "green"


@pytest.mark.leaves_damage("nothing brings the first segment back")
def test_a_begin_that_is_missing_stays_so(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """What was lost does not count for the exit code of an apply; the verdict names it, before and after."""
    store, config = damageable("load-533", "crash"), settings_of("load-533")
    _harm(store, "begin")
    applied = call("recover", "--apply", "-s", store.root, "-c", config, "-o", "json")
    doctor = call("doctor", "-s", store.root, "-c", config, "-o", "json").json["verdict"]
    for verdict in (applied.json["verdict"], doctor):
        assert (verdict["level"], verdict["next"]) == ("yellow", ["rmqctl", "explain", "L026"])
        assert "first segments are missing" in verdict["state"]
    assert applied.code == exit_codes.OK


@pytest.mark.beside
def test_beside_a_broker(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store, config = damageable("load-533", "crash"), settings_of("load-533")
    with at_work_on(store.root):
        verdict = call("doctor", "-s", store.root, "-c", config, "-o", "json").json["verdict"]
    assert "a broker is at work" in verdict["state"]
    assert verdict["level"] != "red"
