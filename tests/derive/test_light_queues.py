"""Lists of light queues are read quickly where they are as they should be: to the same queues and numbers as by their rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store_core.codec.properties import parse_properties
from store_core.derive.dispatch import Dispatcher, DispatchRules, bad_numbers, is_folder_name, light_queues
from store_core.layout import paths

_NAMES = st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", "other", "", "a/b", "..", "é"]), max_size=4).map(",".join)
_NUMBERS = st.lists(st.sampled_from(["0", "7", "12", "", "-1", "+3", " 4", "1_0", "x", "٣", "9" * 20]), max_size=4).map(
    ",".join
)


@given(st.lists(st.tuples(_NAMES, _NUMBERS), min_size=1, max_size=4))
def test_lists_are_read_as_their_rules_say(lists: list[tuple[str, str]]) -> None:
    """Several records of one dispatcher, which remembers lists."""
    dispatcher = Dispatcher(DispatchRules(multi_dispatch=True))
    for queue_id, (names, numbers) in enumerate(lists):
        pairs = {"INNER_MULTI_DISPATCH": names, "KEYS": "k", "INNER_MULTI_QUEUE_OFFSET": numbers}
        raw = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
        found = [
            (dispatcher.keys[key_id], number)
            for key_id, number in dispatcher._listed(raw, queue_id, phy_offset=queue_id)
            if key_id >= 0
        ]
        assert found == [
            ((name, 0 if name.startswith(paths.LMQ_PREFIX) else queue_id), number)
            for name, number in light_queues(parse_properties(raw))
            if is_folder_name(name)
        ]
        assert (queue_id in dispatcher.bad_lists) is bool(bad_numbers(parse_properties(raw)))
