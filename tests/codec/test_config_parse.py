"""Config files are parsed and judged once a command, and what is judged good can be shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.app import main
from store_core.codec import config_parse
from store_core.codec.config_fields import FILES, Bean, ListOf, Plain, Table, Type
from store_core.codec.config_parse import shown
from store_core.codec.config_refusals import Refusals
from store_core.codec.json_dialect import loads
from store_core.layout import paths

ODD_VALUES = st.sampled_from(
    [None, True, "", "x", "7", "null", 0, 1, -1, 2**31 - 1, 2**31, 2**63, 1e99, [], [1], {}, {"a": 1}, {0: None}]
)


def values(type_: Type) -> st.SearchStrategy[Any]:
    """Values of a type, of which some parts are of another one."""
    if isinstance(type_, Plain):
        return st.sampled_from([0, 7]) if type_.is_number else st.sampled_from([True, "x"])
    if isinstance(type_, ListOf):
        return st.lists(values(type_.item) | ODD_VALUES, max_size=2)
    if isinstance(type_, Table):
        return st.dictionaries(st.sampled_from(["a", "b", 5, None]), values(type_.value) | ODD_VALUES, max_size=2)
    members = {name: values(field.type) | ODD_VALUES for name, field in type_.fields.items()}
    return st.fixed_dictionaries({}, optional=members)


@given(st.data(), st.sampled_from(sorted(FILES)))
def test_what_is_not_refused_can_be_shown(data: st.DataObject, name: str) -> None:
    bean: Bean = FILES[name].bean
    tree = data.draw(values(bean) | ODD_VALUES)
    if not Refusals(name, tree).by_us():
        assert list(shown(name, tree)) == list(shown(name, None))


@pytest.mark.parametrize("command", ["info", "lag", "recover", "recover --predict"])
def test_a_command_parses_and_judges_each_text_once(
    command: str, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    judged: list[tuple[str, int]] = []

    def counted(data: bytes) -> Any:
        parsed.append(data)
        return loads(data)

    def counted_refusals(name: str, value: Any) -> Refusals:
        judged.append((name, id(value)))
        return Refusals(name, value)

    monkeypatch.setattr(config_parse, "_parsed", {})
    monkeypatch.setattr(config_parse, "loads", counted)
    monkeypatch.setattr(config_parse, "Refusals", counted_refusals)
    root = golden("crash-533")
    name, *options = command.split()
    assert main([name, "-s", str(root), *options]) in (0, 3)
    assert (root / paths.TOPICS_JSON).read_bytes() in parsed
    assert len(parsed) == len(set(parsed))
    assert paths.TOPICS_JSON in dict(judged)
    assert len(judged) == len(set(judged))
