"""Records of made-up messages: byte for byte those of the release's own encoder."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from store_core.broker.versions import Version
from store_core.codec.properties import format_properties
from store_core.engine.rules import put_rules
from store_core.kernel.encode import EncodeRules, encode_record
from store_core.layout import record
from tests.broker import oracle
from tests.kernel.messages_to_encode import MESSAGES, Message

pytestmark = pytest.mark.broker
_ADDED = {"CLUSTER": "DefaultCluster", "TRACE_ON": "true"}


def field(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def as_input(message: Message) -> bytes:
    """A message as Encoder.java reads it."""
    numbers = message.numbers
    hosts = b"".join(
        field(host[:-4]) + host[-4:] for host in (message.born_host, message.store_host)
    )  # address, then port
    added = b"".join(field(text.encode()) for pair in _ADDED.items() for text in pair)
    return b"".join(
        (
            field(message.topic.encode()),
            field(message.body),
            field(format_properties(message.properties, True)),
            struct.pack(">i", len(_ADDED)),
            added,
            struct.pack(">iii", numbers.queue_id, numbers.flag, numbers.sys_flag),
            struct.pack(">qq", numbers.born_timestamp_ms, numbers.store_timestamp_ms),
            struct.pack(">iq", numbers.reconsume_times, numbers.prepared_phy_offset),
            hosts,
        )
    )


def real_records(version: str, folder: Path, messages: Sequence[Message]) -> Iterator[bytes]:
    (folder / "in").write_bytes(struct.pack(">i", len(messages)) + b"".join(map(as_input, messages)))
    command = [*oracle.java_command(version, folder), "Encoder", str(folder / "in"), str(folder / "out")]
    done = subprocess.run(command, env=oracle.java_environment(folder), cwd=folder, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    data, at = (folder / "out").read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def made_up(count: int) -> list[Message]:
    """Topics are those that the release takes; 4.9.7's record has one byte for their length."""
    found: list[Message] = []

    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(MESSAGES.filter(lambda m: len(m.topic) <= 127 and len(m.topic.encode()) <= 127))
    def collect(message: Message) -> None:
        found.append(message)

    collect()
    return found


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_records_are_those_of_the_real_encoder(
    jars: Callable[[str], Path], tmp_path: Path, version: str, count: int
) -> None:
    jars(version)
    messages = made_up(count)
    assert len(messages) >= count // 2
    assert {(len(m.born_host), len(m.store_host)) for m in messages} == {(a, b) for a in (8, 20) for b in (8, 20)}
    rules = put_rules(Version.parse(version))
    own = EncodeRules(rules.final_separator, False, rules.property_map_size, rules.index_tags)
    for message, real in zip(messages, real_records(version, tmp_path, messages), strict=True):
        unplaced = message.numbers._replace(queue_offset=0, phy_offset=0)
        properties = message.properties | _ADDED
        made = encode_record(
            message.topic, message.body, properties, unplaced, message.born_host, message.store_host, own
        )
        assert made.data == real, message


def test_long_topics_make_the_second_version(jars: Callable[[str], Path], tmp_path: Path) -> None:
    jars("5.3.3")
    long = [m for m in made_up(60) if m.numbers.sys_flag & record.TRANSACTION_MASK == 0][:5]
    messages = [Message("%RETRY%" + "g" * (121 + n), *list(vars(m).values())[1:]) for n, m in enumerate(long)]
    rules = put_rules(Version(5, 3, 3))
    own = EncodeRules(rules.final_separator, False, rules.property_map_size, rules.index_tags)
    for message, real in zip(messages, real_records("5.3.3", tmp_path, messages), strict=True):
        unplaced = message.numbers._replace(queue_offset=0, phy_offset=0)
        made = encode_record(
            message.topic,
            message.body,
            message.properties | _ADDED,
            unplaced,
            message.born_host,
            message.store_host,
            own,
        )
        assert made.data == real
