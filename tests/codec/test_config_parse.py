"""Config files are parsed once a command, and judged by their distinct entries: the answers are those of the whole file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.app import main
from store_core.codec import config_parse
from store_core.codec.config_beans import FILES
from store_core.codec.config_types import _KNOWN, distinct, what_is_wrong
from store_core.codec.json_dialect import loads
from store_core.layout import paths

ODD_VALUES = st.sampled_from(
    [None, True, "", "x", "7", "null", 0, 1, -1, 2**31 - 1, 2**31, 2**63, 1e99, [], [1], {}, {"a": 1}, {0: None}]
)
ONE_OF_EACH: dict[str, list[str]] = {
    paths.TOPICS_JSON: ["topicConfigTable"],
    paths.SUBSCRIPTION_GROUP_JSON: ["subscriptionGroupTable", "forbiddenTable"],
    paths.CONSUMER_OFFSET_JSON: ["offsetTable", "groupTopicMap"],
}


@st.composite
def files(draw: st.DrawFn) -> tuple[str, Any]:
    """A file whose tables have entries of few kinds, each of which a value or two of another type may be in."""
    name = draw(st.sampled_from(sorted(ONE_OF_EACH)))
    members = FILES[_KNOWN[-1][0]][name].members
    file: dict[str, Any] = {}
    for table in ONE_OF_EACH[name]:
        item = members[table].value  # type: ignore[attr-defined]  # only tables have members
        names = sorted(getattr(item, "members", {0: None, "1": None, "topic": None}), key=str)
        entries = st.dictionaries(st.sampled_from(names), ODD_VALUES, max_size=3)
        file[table] = draw(st.dictionaries(st.sampled_from(["a", "b", "c", "d", 5, None]), entries | ODD_VALUES))
    return name, file


@given(files())
def test_distinct_entries_are_judged_as_all_of_them(given_file: tuple[str, Any]) -> None:
    name, file = given_file
    few = distinct(name, copy.deepcopy(file))
    for members, reader in _KNOWN:
        if name in FILES[members]:
            assert what_is_wrong(name, few, members, reader) == what_is_wrong(name, file, members, reader)


def test_of_many_topics_few_are_judged() -> None:
    bean = {"readQueueNums": 4, "attributes": {}, "order": False}
    table = {f"t{number}": {**bean, "topicName": f"t{number}", "perm": number % 7} for number in range(1000)}
    odd = {**bean, "topicName": "odd", "perm": "x"}
    few = distinct(paths.TOPICS_JSON, {"topicConfigTable": {**table, "odd": odd}})
    assert list(few["topicConfigTable"]) == ["t0", "odd"]


@pytest.mark.parametrize("command", ["info", "lag", "recover", "recover --predict"])
def test_a_command_parses_each_text_once(
    command: str, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def counted(data: bytes) -> Any:
        parsed.append(data)
        return loads(data)

    monkeypatch.setattr(config_parse, "_parsed", {})
    monkeypatch.setattr(config_parse, "loads", counted)
    root = golden("crash-533")
    name, *options = command.split()
    assert main([name, "-s", str(root), *options]) in (0, 3)
    assert (root / paths.TOPICS_JSON).read_bytes() in parsed
    assert len(parsed) == len(set(parsed))
