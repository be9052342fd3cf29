"""Lists of light queues are read quickly where they are as they should be: to the same queues and numbers as by their rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store_core.codec.properties import parse_properties
from store_core.derive.dispatch import Dispatcher, DispatchRules, bad_numbers, is_folder_name, light_queues
from store_core.errors import UnreadableError
from store_core.layout import paths
from store_core.layout.queue import ENTRY
from store_core.storage.store import QueueKey

_NAMES = st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", "other", "", "a/b", "..", "é"]), max_size=4).map(",".join)
_NUMBERS = st.lists(st.sampled_from(["0", "7", "12", "", "-1", "+3", " 4", "1_0", "x", "٣", "9" * 20]), max_size=4).map(
    ",".join
)


@given(st.lists(st.tuples(_NAMES, _NUMBERS), min_size=1, max_size=4), st.booleans())
def test_lists_are_read_as_their_rules_say(lists: list[tuple[str, str]], lmq: bool) -> None:
    """Several records of one dispatcher, which remembers lists."""
    dispatcher = Dispatcher(DispatchRules(multi_dispatch=True, lmq=lmq))
    for queue_id, (names, numbers) in enumerate(lists):
        pairs = {"INNER_MULTI_DISPATCH": names, "KEYS": "k", "INNER_MULTI_QUEUE_OFFSET": numbers}
        raw = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
        found = [
            (dispatcher.keys[key_id], number)
            for key_id, number in dispatcher._listed(raw, queue_id, phy_offset=queue_id)
            if key_id >= 0
        ]
        assert found == [
            ((name, 0 if lmq and name.startswith(paths.LMQ_PREFIX) else queue_id), number)
            for name, number in light_queues(parse_properties(raw))
            if is_folder_name(name)
        ]
        assert (queue_id in dispatcher.bad_lists) is bool(bad_numbers(parse_properties(raw)))


class _Entries:
    """A queue whose entries lead to these offsets; None cannot be read."""

    def __init__(self, *phy_offsets: int | None) -> None:
        self._phy_offsets = phy_offsets

    def read(self, at: int, size_bytes: int) -> bytes:
        number = at // size_bytes
        phy_offset = self._phy_offsets[number] if number < len(self._phy_offsets) else 0
        if phy_offset is None:
            raise UnreadableError("cannot read the queue")
        return ENTRY.struct.pack(phy_offset, 100 if number < len(self._phy_offsets) else 0, 0)


def test_where_lists_count_for_nothing_entries_tell_what_was_entered() -> None:
    """By a broker that came before."""
    queues = {QueueKey("%LMQ%a", 0): _Entries(1000, 2000, None), QueueKey("b", 3): _Entries(9000)}
    dispatcher = Dispatcher(DispatchRules(multi_dispatch=True, light_queues=queues))  # type: ignore[arg-type]  # reads alone

    def entered(names: str, numbers: str, phy_offset: int) -> list[tuple[QueueKey, int]]:
        raw = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{numbers}\x02".encode()
        return [(dispatcher.keys[key_id], number) for key_id, number in dispatcher._entered(raw, 3, phy_offset)]

    assert entered("%LMQ%a,b", "1,0", 2000) == [(("%LMQ%a", 0), 1)]
    assert entered("%LMQ%a,b", "0,0", 9000) == [(("b", 3), 0)]
    assert entered("%LMQ%a,b,none", "2,7,0", 2000) == []
    assert entered("%LMQ%a,b", "1", 2000) == []
    assert entered("%LMQ%a", "7", 0) == []  # zeros lead nowhere
    assert entered("%LMQ%a", "-1", 1000) == []
    assert entered("%LMQ%a", "x", 1000) == []
    assert len(dispatcher.bad_lists) == 0
