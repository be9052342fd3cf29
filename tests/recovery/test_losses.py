"""What is lost has one meaning: the same numbers for every policy, on the terminal, in JSON and in the loss report, and they add up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl import exit_codes
from tests.damage import Damageable
from tests.recovery.recovering import is_queued
from tests.rmqctl.calls import call

DamageableOf = Callable[..., Damageable]
SettingsOf = Callable[[str], Path]
WORDS = {
    "unreadable_messages": "unreadable already",
    "thrown_away_messages": "thrown away by a broker's start",
    "kept_messages": "kept by recover",
    "given_up_messages": "given up, though readable",
    "lost_messages": "lost with this plan",
}


def _flipped(store: Damageable, count: int, *, from_segment: int = 0) -> None:
    """Flip a bit in the bodies of so many messages, from a segment's begin on."""
    begin = from_segment * store.segment_size_bytes
    messages = enumerate(store.truth["messages"])
    numbers = [n for n, m in messages if m["phyOffset"] >= begin and m["bodyLength"] and is_queued(m)]
    for number in numbers[:count]:
        store.flip(number, "body")


def _losses(store: Damageable, config: Path, policy: str) -> dict[str, Any]:
    document = call("recover", "--policy", policy, "-s", store.root, "-c", config, "-o", "json").json
    losses: dict[str, Any] = document["losses"]
    assert sum(run["messages"] for run in document["lost"]) == losses["lost_messages"]
    assert losses["lost_messages"] == losses["unreadable_messages"] + losses["given_up_messages"]
    assert losses["thrown_away_messages"] == losses["kept_messages"] + losses["given_up_messages"]
    return losses


@pytest.mark.parametrize("exit", ["clean", "crash"])
def test_the_same_for_every_policy(exit: str, damageable: DamageableOf, settings_of: SettingsOf) -> None:
    """After a clean stop no start comes to the damage: a broker loses nothing more, and 11 messages are lost all the same."""
    store, config = damageable("load-533", exit), settings_of("load-533")
    _flipped(store, 11)
    keep, broker, strict = (_losses(store, config, policy) for policy in ("keep", "broker", "strict"))
    assert keep == strict
    assert keep["unreadable_messages"] == broker["unreadable_messages"] == 11
    assert keep["thrown_away_messages"] == broker["thrown_away_messages"]
    assert (broker["kept_messages"], keep["given_up_messages"]) == (0, 0)
    for policy in ("keep", "broker"):
        assert "Nothing is lost" not in call("recover", "--policy", policy, "-s", store.root, "-c", config).out


@pytest.mark.parametrize("policy", ["keep", "broker"])
def test_the_same_in_every_format(
    policy: str, damageable: DamageableOf, settings_of: SettingsOf, tmp_path: Path
) -> None:
    store, config = damageable("load-533", "crash"), settings_of("load-533")
    _flipped(store, 3, from_segment=4)
    options = ("recover", "--policy", policy, "-s", store.root, "-c", config)
    losses = call(*options, "-o", "json", "--report", tmp_path / "loss.json").json["losses"]
    assert losses["thrown_away_messages"] > 100
    assert json.loads((tmp_path / "loss.json").read_text())["losses"] == losses
    shown = call(*options, "--report", tmp_path / "loss.html").out
    page = (tmp_path / "loss.html").read_text()
    for name, words in WORDS.items():
        if losses[name] or name != "given_up_messages":
            assert re.search(rf"^{re.escape(words)} +{losses[name]}$", shown, re.MULTILINE), words
            assert re.search(
                rf"{words[1:]}<.*?>{losses[name]:,}<", page.replace("&#x27;", "'").replace("&#39;", "'")
            ), words


def test_the_report_of_a_prediction_says_what_it_does_not_know(
    damageable: DamageableOf, settings_of: SettingsOf, tmp_path: Path
) -> None:
    store, config = damageable("load-533", "crash"), settings_of("load-533")
    _flipped(store, 3, from_segment=4)
    options = ("-s", store.root, "-c", config, "-o", "json")
    told = call("recover", "--predict", *options, "--report", tmp_path / "loss.json").json
    losses = json.loads((tmp_path / "loss.json").read_text())["losses"]
    assert losses["unreadable_messages"] is None
    assert losses == told["losses"]
    assert losses["thrown_away_messages"] == told["prediction"]["lost_messages"] - 3


def test_a_cut_counts_what_could_be_read(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store, config = damageable("load-533", "clean"), settings_of("load-533")
    behind = [m for m in store.truth["messages"] if m["phyOffset"] >= store.message(-40)["phyOffset"] and is_queued(m)]
    number = max(n for n, m in enumerate(store.truth["messages"]) if m["bodyLength"] and is_queued(m))
    store.flip(number, "body")
    cut = store.message(-40)["phyOffset"]
    told = call("truncate", cut, "-s", store.root, "-c", config, "-o", "json").json
    losses = told["losses"]
    assert (losses["given_up_messages"], losses["unreadable_messages"]) == (len(behind) - 1, 1)
    assert sum(run["messages"] for run in told["lost"]) == losses["lost_messages"] == len(behind)


def test_after_an_apply_what_was_done_comes_first(damageable: DamageableOf, settings_of: SettingsOf) -> None:
    store, config = damageable("load-533", "crash"), settings_of("load-533")
    _flipped(store, 3, from_segment=4)
    result = call("recover", "--apply", "-s", store.root, "-c", config)
    assert result.code == exit_codes.OK
    assert re.match(r"Done\. Kept \d+, lost 3\.\n\nHow it stands\n", result.out)
    places = [
        result.out.index(words) for words in ("How it stands", "\nMessages\n", "Applied.", "\nBefore: ", "\nVerdict: ")
    ]
    assert places == sorted(places)
