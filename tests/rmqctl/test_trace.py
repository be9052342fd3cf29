"""`rmqctl trace` as people and scripts see it."""

from __future__ import annotations

import csv
import io
import json

from rmqctl import exit_codes
from tests.conftest import GoldenStore
from tests.read.test_trace import NAME, by_unique_key, some
from tests.rmqctl.calls import call, on_terminal


def test_the_document(golden: GoldenStore) -> None:
    key = some(by_unique_key(NAME), "HALF", 5)
    told = by_unique_key(NAME)[key]
    result = call("trace", key, "-s", golden(NAME), "-o", "json")
    assert (result.code, result.err) == (exit_codes.OK, "")
    document = result.json
    assert [*document] == ["key", "source", "messages", "steps"]
    (message,) = document["messages"]
    assert (message["unique_key"], message["outcome"]) == (key, ["given up, never in Shop_tx/0"])
    for number, (step, record) in enumerate(zip(document["steps"], told, strict=True), 1):
        assert (step["message"], step["step"], step["unique_key"]) == (1, number, key)
        place = [step[field] for field in ("topic", "queue_id", "queue_offset", "phy_offset", "store_timestamp_ms")]
        assert place == [record[field] for field in ("topic", "queueId", "queueOffset", "phyOffset", "storeTimestamp")]
        assert step["properties"] == record["properties"]
        assert step["store_time"].startswith("2026-11-21T02:11:")
        assert step["store_time"].endswith("Z")
    assert [step["state"] for step in document["steps"]] == ["asked_again"] * 3 + ["given_up", None]


def test_rows_for_scripts(golden: GoldenStore) -> None:
    key = some(by_unique_key(NAME), "XXXX", 2)
    words = ("trace", key, "-s", golden(NAME))
    steps = call(*words, "-o", "json").json["steps"]
    assert call(*words, "-o", "ndjson").lines == steps
    delayed, delivered = csv.DictReader(io.StringIO(call(*words, "-o", "csv").out))
    assert (delayed["what"], delayed["state"], delivered["what"]) == ("delayed", "delivered", "delivered")
    assert json.loads(delivered["groups"]) == [{"group": "Shop_g_all", "next_offset": 7, "consumed": True}]
    assert delayed["due_time"] < delivered["store_time"]


def test_on_a_terminal_of_80_columns(golden: GoldenStore) -> None:
    messages = by_unique_key(NAME)
    for key in (some(messages, "_again", 8), some(messages, "HALF", 2), some(messages, "XXXX", 1)):
        shown = on_terminal("trace", key, "-s", golden(NAME), COLUMNS="80")
        lines = shown.text.splitlines()
        assert (shown.code, max(map(len, lines))) == (exit_codes.OK, 80)
        assert key in lines[0]
        text = " ".join(shown.text.split())
        assert ("until 2026-11-21T0" in text) == (len(messages[key]) == 1)
        assert {m["topic"][:12] for m in messages[key]} <= {word[:12] for word in text.split()}


def test_an_unknown_key_is_no_error(golden: GoldenStore) -> None:
    result = call("trace", "no-such-key", "-s", golden(NAME), "-o", "json")
    assert (result.code, result.json["steps"], result.json["messages"]) == (exit_codes.OK, [], [])
    assert "no message has the key 'no-such-key'" in result.err
    assert call("trace", "no-such-key", "-s", golden(NAME), "-o", "ndjson").out == ""


def test_a_key_of_many_messages(golden: GoldenStore) -> None:
    result = call("trace", "shared10", "--max", 2, "-s", golden(NAME), "-o", "json")
    assert [message["message"] for message in result.json["messages"]] == [1, 2]
    assert {step["message"] for step in result.json["steps"]} == {1, 2}
    assert "older messages have the key 'shared10' too" in result.err


def test_usage(golden: GoldenStore) -> None:
    assert call("trace", "-s", golden(NAME)).code == exit_codes.USAGE
    assert call("trace", "k", "--max", 0, "-s", golden(NAME)).code == exit_codes.USAGE
    assert "UNIQUE_KEY|KEY" in call("trace", "--help").text
