"""What a person types and reads: filters of `log`, notes on unknown names, `help`, wrong words, narrow terminals, follows."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest

from rmqctl import exit_codes
from tests import stores
from tests.conftest import GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import ROOT, call, command, environment, on_terminal

NAME = "load-533"


def messages() -> list[dict[str, object]]:
    return list(stores.truth(NAME)["messages"])


def test_a_follow_on_a_terminal_shows_each_message_and_ends_quietly(store_copy: StoreCopy) -> None:
    store = Damageable(store_copy(NAME), stores.truth(NAME))
    last = store.message(-1)
    data = store.read(last["phyOffset"], last["storeSize"])
    store.zero(last["phyOffset"], last["storeSize"])
    ours, theirs = pty.openpty()
    words = command("tail", "-n", 2, "--follow", "-s", store.root)
    process = subprocess.Popen(words, cwd=ROOT, env=environment(COLUMNS="80"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        before = read_until(ours, lambda text: text.count("\n") >= 5)
        store.write(last["phyOffset"], data)
        key = re.search(r"CK\d+", stores_key(last))
        assert key is not None
        assert key[0] not in before
        after = read_until(ours, lambda text: key[0] in text)
    finally:
        process.send_signal(2)
        assert process.wait(30) == exit_codes.INTERRUPTED
    assert "error" not in after + read_rest(ours)


def stores_key(message: dict[str, object]) -> str:
    return json.dumps(message["properties"])


def read_until(terminal: int, is_enough: object) -> str:
    seen, end = "", time.monotonic() + 30
    while time.monotonic() < end and not is_enough(seen):  # type: ignore[operator]
        seen += os.read(terminal, 1 << 16).decode(errors="replace").replace("\r", "")
    return seen


def read_rest(terminal: int) -> str:
    seen = ""
    try:
        while part := os.read(terminal, 1 << 16):
            seen += part.decode(errors="replace")
    except OSError:
        pass
    os.close(terminal)
    return seen


@pytest.mark.parametrize("words", [("tail", "-n", 3), ("log", "--max", 3), ("pull", "Calm_orders", 0, "--max", 3)])
def test_80_columns_show_keys_and_the_begin_of_the_body(golden: GoldenStore, words: tuple[object, ...]) -> None:
    text = on_terminal(*words, "-s", golden(NAME), COLUMNS="80").text
    heading = next(line for line in text.splitlines() if "body" in line)
    assert "keys" in heading
    assert "stored" in heading
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("words", ["lag", "config"])
def test_80_columns_fold_long_names_in_a_table(store_copy: StoreCopy, words: str) -> None:
    root = store_copy(NAME)
    table = {f"{'long_topic_' * 6}@{'long_group_' * 6}": {0: 5}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    topic = {"topicName": "long_topic_" * 6, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    topics = {"topicConfigTable": {topic["topicName"]: topic}, "dataVersion": {}}
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    lines = on_terminal(words, "-s", root, COLUMNS="80").text.splitlines()
    assert max(map(len, lines)) <= 80
    heading = next(i for i, line in enumerate(lines) if "topic" in line and ("lag" in line or "perm" in line))
    assert set(lines[heading + 1]) == {"─"}
    assert "long_topic_" in lines[heading + 2]


FILTERS = [
    ("--key", "shared3", lambda m: "shared3" in m["properties"].get("KEYS", "").split(" ")),
    ("--tag", "Aa || BB", lambda m: m["properties"].get("TAGS") in ("Aa", "BB")),
    ("--property", "TAGS=Aa", lambda m: m["properties"].get("TAGS") == "Aa"),
]


@pytest.mark.parametrize(("option", "value", "passes"), FILTERS, ids=[each[0] for each in FILTERS])
def test_log_shows_what_a_filter_lets_pass(golden: GoldenStore, option: str, value: str, passes: object) -> None:
    rows = call("log", option, value, "-s", golden(NAME), "--no-body", "-o", "ndjson").lines
    expected = [m["phyOffset"] for m in messages() if passes(m)]  # type: ignore[operator]
    assert [row["phy_offset"] for row in rows] == expected
    assert 0 < len(expected) < len(messages())
    few = call("log", option, value, "-s", golden(NAME), "--no-body", "-o", "ndjson", "--max", 2).lines
    assert [row["phy_offset"] for row in few] == expected[:2]


def test_log_greps_plain_bodies(golden: GoldenStore) -> None:
    everything = call("log", "-s", golden(NAME), "-o", "ndjson").lines
    wanted = [r["phy_offset"] for r in everything if r["body_encoding"] == "utf-8" and re.search("rechn.ng", r["body"])]
    rows = call("log", "--grep", "rechn.ng", "-s", golden(NAME), "-o", "ndjson").lines
    assert [row["phy_offset"] for row in rows] == wanted
    assert any(row["compression"] != "none" for row in rows)


UNKNOWN = [
    (("log", "--topic", "nosuch"), "topic 'nosuch' has no queue"),
    (("tail", "--topic", "nosuch"), "topic 'nosuch' has no queue"),
    (("query-key", "nosuch", "k"), "topic 'nosuch' has no queue"),
    (("lag", "--topic", "nosuch"), "topic 'nosuch' has no queue"),
    (("lag", "--group", "nosuch"), "group 'nosuch' has no progress"),
    (("dump-cq", "nosuch", "--all"), "topic 'nosuch' has no queue"),
    (("pull", "nosuch", 0), "there is no queue 0 of topic 'nosuch'"),
    (("dump-index", "--slot", 10**9), "there is no slot 1000000000"),
]


@pytest.mark.parametrize(("words", "note"), UNKNOWN)
def test_an_unknown_name_is_a_note(golden: GoldenStore, words: tuple[object, ...], note: str) -> None:
    assert f"note: {note}" in call(*words, "-s", golden(NAME)).err


def test_a_configuration_without_a_broker_s_names_is_a_note(golden: GoldenStore, tmp_path: Path) -> None:
    (tmp_path / "wrong.conf").write_text("colour=blue\n")
    (tmp_path / "right.conf").write_text("brokerName=a\n")
    assert (
        call("info", "-s", golden(NAME), "-c", tmp_path / "wrong.conf").err.count("holds no setting of a broker") == 1
    )
    assert "holds no setting" not in call("info", "-s", golden(NAME), "-c", tmp_path / "right.conf").err


def test_help_is_a_command() -> None:
    assert call("help", "recover").out == call("recover", "--help").out
    assert call("help").out == call("--help").out
    assert call("help", "nosuch").code == exit_codes.USAGE


def test_explain_takes_several_codes() -> None:
    result = call("explain", "L001", "q007", "-o", "json")
    assert [kind["code"] for kind in result.json["codes"]] == ["L001", "Q007"]
    assert call("explain", "L001", "-o", "json").json["code"] == "L001"


@pytest.mark.parametrize(
    ("word", "offered"), [("output", ""), ("zzput", ""), ("tial", "'tail'"), ("recovr", "'recover'")]
)
def test_a_wild_word_is_never_taken_for_a_writing_command(word: str, offered: str) -> None:
    error = call(word).err
    assert error == f"error: no such command {word!r}: " + (f"did you mean {offered}? Or " if offered else "") + (
        "see `rmqctl --help`\n"
    )


def test_usage_names_arguments_as_click_does() -> None:
    assert call("pull", "--help").out.startswith("Usage: rmqctl pull [OPTIONS] TOPIC QUEUE_ID\n")
