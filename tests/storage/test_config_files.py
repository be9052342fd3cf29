"""Config files: what real brokers load of damaged ones, every golden store's, and rewriting."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest

from store_core.broker import config_load
from store_core.codec import json_dialect
from store_core.codec.config_parse import Shown, parse_config
from store_core.codec.json_dialect import MAX_SIZE_BYTES, loads
from store_core.derive.topics import topic_entry
from store_core.errors import FailedError
from store_core.layout import paths
from store_core.storage import config_files
from store_core.storage.config_files import ConfigFile, TimerCheck, offset_table, read_config, read_config_file
from store_core.storage.config_text import release_layout, render_consumer_offsets, render_topics
from store_core.storage.store import Store
from tests import stores
from tests.conftest import StoreCopy

STORE_OF = {"4.9.7": "clean-497", "5.1.4": "clean-514", "5.3.3": "clean-533", "5.4.0": "clean-540"}
OFFSETS = paths.CONSUMER_OFFSET_JSON
CASES = [(version, case) for version, cases in stores.extra_truth("conf").items() for case in cases]


def variants(good: str) -> dict[str, str | None]:
    """The texts of the main file in the cases, as the golden kit made them of the store's own."""
    return {
        "good": good,
        "missing": None,
        "empty": "",
        "torn": good[: len(good) * 2 // 3],
        "junk": "\0\1garbage{{",
        "zeros": "\0" * 300,
        "extra": good + "\n}}}",
        "braces": "{}",
        "null": "null",
        "quoted-keys": re.sub(r"(?<=[{,\s])(\d+):", r'"\1":', good),
        "trailing-comma": re.sub(r"(\d)\s*\}", r"\1,}", good, count=1),
        "bom": "\ufeff" + good,
    }


def write(path: Path, text: str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        path.write_text(text, "utf-8", newline="")


@pytest.mark.parametrize(("version", "case"), CASES, ids=lambda v: v if isinstance(v, str) else v["main/bak"])
def test_damaged_offsets_load_as_in_a_real_broker(
    golden: Callable[[str], Path], tmp_path: Path, version: str, case: dict[str, object]
) -> None:
    texts = variants((golden(STORE_OF[version]) / OFFSETS).read_text("utf-8"))
    older = re.sub(r"\{0:\s*(\d+)", "{0:1", texts["good"] or "", count=1)
    main, bak = str(case["main/bak"]).split("/")
    write(tmp_path / OFFSETS, texts[main])
    write(tmp_path / (OFFSETS + paths.BAK_SUFFIX), older if bak == "good" else texts[bak])
    found = read_config(tmp_path)
    file = found.consumer_offsets
    sum_of_queue_0 = sum(offsets.get(0, 0) for offsets in file.value["offsets"].values())
    assert (file.loads, len(file.value["offsets"]), sum_of_queue_0) == (
        case["load"],
        case["entries"],
        case["sumOfQueue0"],
    )
    assert found.loads == case["load"]
    main_is_used = main in ("good", "braces", "null", "quoted-keys", "trailing-comma", "bom")
    codes = [f.code for f in found.findings]
    if main_is_used:
        assert (file.source, codes) == ("main", [])
    elif bak == "good":
        assert (file.source, codes) == ("bak", ["P003"])
    else:
        assert (file.source, codes) == ("none", [] if main == bak == "missing" else ["P004"])


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_golden_store(golden: Callable[[str], Path], name: str) -> None:
    told = stores.truth(name)
    config = read_config(golden(name))
    if name in stores.WITHOUT_QUEUE_FILES:
        assert config.in_rocksdb
        assert [(f.code, f.severity) for f in config.findings] == [("P008", "info")]
    else:
        assert not config.in_rocksdb
        assert config.findings == ()
    assert config.loads
    offsets: dict[str, dict[str, int]] = {}
    for (group, topic, queue_id), offset in offset_table(config).items():
        offsets.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    if not config.in_rocksdb:
        assert offsets == (told.get("consumerOffsets") or {})
    of_release = {"4.3": "4", "4.9": "4", "5.4": "5.4", "5.5": "5.5"}
    assert release_layout(config) == of_release.get(told["written_by"][:3], "5")
    topics = config.topics.value["topics"]
    written = {message["topic"] for message in told["messages"]}
    if config.topics.source == "main":
        assert written - set(topics) <= {
            t for t in written if t.startswith(("RMQ_SYS_TRANS", "rmq_sys_", "TRANS_CHECK", "SCHEDULE"))
        }
        assert all(topic["perm"] in range(16) and topic["read_queues"] > 0 for topic in topics.values())


def test_typed_values(golden: Callable[[str], Path]) -> None:
    config = read_config(golden("clean-533"))
    assert config.topics.value["data_version"] == {"counter": 22, "timestamp_ms": 1795227121101, "state_version": 0}
    assert config.topics.value["topics"]["Shop_fifo"] == config.topic("Shop_fifo") == topic("Shop_fifo", 3, FIFO)
    assert config.topic("nobody") is None
    assert list(config.topic_names) == list(config.topics.value["topics"])
    assert config.topics_with(*next(iter(FIFO.items()))) >= {"Shop_fifo"}
    assert config.delay_levels == {1: 3, 2: 3, 3: 26, 4: 12, 17: 0, 18: 0}
    group = config.subscription_groups.value["groups"]["Shop_g_fifo"]
    assert (group["retry_max_times"], group["consume_timeout_minutes"], group["consume_enable"]) == (16, 15, True)
    (found,) = config.consumer_filters.value["filters"]
    text = "a > 4 AND region IS NOT NULL"
    assert (found["topic"], found["group"], found["expression"]) == ("Shop_orders", "Shop_g_sql", text)
    assert (found["bloom_bits"], found["bloom_positions"], found["dead"]) == (112, [56, 69, 51], True)
    (mode,) = config.request_modes.value["modes"]
    assert (mode["topic"], mode["group"], mode["mode"]) == ("Shop_pop", "Shop_g_pop", "POP")
    assert config.timer_metrics.value["topics"]["Shop_delay"]["count"] == 4
    assert config.transaction_metrics.value["topics"]["Shop_tx"]["timestamp_ms"] == 1795227116817
    assert config.timer_check == TimerCheck(1795227133000, 2392, 46, 46, 0, 1795227133317, 22)
    assert read_config(golden("clean-540")).order_infos.value["ordered_consumption_level"] == "QUEUE"
    version = read_config(golden("clean-497")).topics.value["data_version"]
    assert version == {"counter": 20, "timestamp_ms": 1795227172768, "state_version": None}
    assert read_config(golden("compact-533")).compaction_positions.value["offsets"]


FIFO = {"message.type": "FIFO"}


def topic(name: str, queues: int, attributes: dict[str, str]) -> Shown:
    numbers = {"read_queues": queues, "write_queues": queues, "perm": 6, "sys_flag": 0}
    return {"topic": name, **numbers, "order": False, "filter_type": "SINGLE_TAG", "attributes": attributes}


def value_of(name: str, text: str) -> Shown | None:
    """What a file says under our names; None where a value of another type keeps us from reading it."""
    parsed = parse_config(text.encode())
    return None if parsed.refusals(name).by_us() else parsed.shown(name)


def test_shapes_no_golden_store_has() -> None:
    text = '{"table":{"T@g":{0:{"a":"try","cm":1,"i":60000,"l":7,"o":[10,1,5],"oc":{10:1},"ot":{10:99},"popTime":5}}}}'
    assert value_of(paths.CONSUMER_ORDER_INFO_JSON, text) == {
        "ordered_consumption_level": None,
        "orders": [
            {
                "topic_at_group": "T@g",
                "queue_id": 0,
                "pop_timestamp_ms": 5,
                "invisible_ms": 60000,
                "offsets": [10, 11, 15],
                "committed_bits": 1,
                "attempt_id": "try",
                "next_visible_timestamps_ms": {10: 99},
                "consumed_counts": {10: 1},
            }
        ],
    }
    text = '{"topicQueueMappingInfoMap":{"S":{"bname":"b","epoch":1,"totalQueues":2,"scope":"x","hostedQueues":'
    text += '{0:[{"bname":"b","endOffset":-1,"gen":0,"logicOffset":3,"queueId":4}]}}}}'
    mapping = (value_of(paths.TOPIC_QUEUE_MAPPING_JSON, text) or {})["mappings"]["S"]
    assert (mapping["hosted_queues"][0][0]["logic_offset"], mapping["hosted_queues"][0][0]["queue_id"]) == (3, 4)
    text = '{"forbiddenTable":{"g":{"T":1}},"subscriptionGroupTable":{"g":{"subscriptionDataSet":[{"topic":"T","version":7}]}}}'
    groups = value_of(paths.SUBSCRIPTION_GROUP_JSON, text) or {}
    assert groups["forbidden"] == {"g": {"T": 1}}
    assert groups["groups"]["g"]["subscriptions"] == [{"topic": "T", "version": "7"}]
    assert value_of(paths.CONSUMER_ORDER_INFO_JSON, "null") == {"ordered_consumption_level": None, "orders": []}


# What the real loaders made of these (RemotingSerializable of 5.3.3 and 5.4.0 with fastjson 1 and 2).
@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"offsetTable":{"a@b":{"0":"1"}}}', {"a@b": {0: 1}}),
        ('{"offsetTable":{"a@b":{0:1.5}}}', {"a@b": {0: 1}}),
        ('{"offsetTable":{"a@b":{0:true}}}', {"a@b": {0: 1}}),
        ('{"offsetTable":{"a@b":{0:null}}}', {"a@b": {}}),
        ('{"offsetTable":null}', {}),
        ('{"offsetTable":{"a@b":null}}', {}),
        ('{"offsetTable":{"a@b":{0:1}}}\0\0\0', {"a@b": {0: 1}}),
        ('{"offsetTable":{"a@b":{0:1},"c@d":{"$ref":"$.offsetTable.a@b"}}}', {"a@b": {0: 1}, "c@d": {0: 1}}),
        ('{"offsetTable":[]}', None),
        ('{"offsetTable":5}', None),
        ('{"offsetTable":{"a@b":[1,2]}}', None),
        ('{"offsetTable":{"a@b":{"x":1}}}', None),
        ('{"offsetTable":{"a@b":{0:"x"}}}', None),
        ('{"offsetTable":{"a@b":{0:99999999999999999999}}}', None),
        ('{"offsetTable":{"a@b":{2147483647:1}}}', {"a@b": {2147483647: 1}}),
        ('{"offsetTable":{"a@b":{2147483648:1}}}', None),  # the key is an int
        ('{"offsetTable":{"a@b":{4294967297:1,5:2}}}', None),
        ("5", None),
        ('"x"', None),
        ("[1]", None),
    ],
)
def test_types_that_a_broker_reads(text: str, offsets: dict[str, dict[int, int]] | None) -> None:
    value = value_of(OFFSETS, text)
    assert (value["offsets"] if value is not None else None) == offsets


@pytest.mark.parametrize(("given", "queues"), [("3000000000.0", -1294967296), ("7.9", 7), ("3000000000", None)])
def test_a_number_of_queues_that_no_int_holds(given: str, queues: int | None) -> None:
    """With a point the lowest bits count, in 4.9.7, 5.3.3 and 5.4.0; without one the file is broken."""
    text = f'{{"topicConfigTable":{{"a":{{"readQueueNums":{given}}}}}}}'
    value = value_of(paths.TOPICS_JSON, text)
    if value is None:
        assert queues is None
        assert (
            parse_config(text.encode()).refusals(paths.TOPICS_JSON).by_us()
            == "readQueueNums of a is too large a number"
        )
    else:
        assert value["topics"]["a"]["read_queues"] == queues


class TestBadPlaces:
    def read(self, root: Path) -> tuple[ConfigFile, list[str]]:
        found = read_config(root)
        return found.consumer_offsets, [f.code for f in found.findings]

    def test_a_folder_in_place_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / OFFSETS).mkdir(parents=True)
        file, codes = self.read(tmp_path)
        assert (file.source, file.loads, codes) == ("none", True, ["P004"])
        write(tmp_path / (OFFSETS + paths.BAK_SUFFIX), '{"offsetTable":{"T@g":{0:5}}}')
        file, codes = self.read(tmp_path)
        assert (file.source, codes) == ("bak", ["P003"])

    def test_a_folder_in_place_of_the_bak_only_counts_when_it_is_needed(self, tmp_path: Path) -> None:
        (tmp_path / (OFFSETS + paths.BAK_SUFFIX)).mkdir(parents=True)
        assert self.read(tmp_path)[1] == ["P004"]
        write(tmp_path / OFFSETS, "{}")
        assert self.read(tmp_path)[1] == []

    def test_a_file_in_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / paths.CONFIG).write_text("no folder")
        found = read_config(tmp_path)
        assert all(file.source == "none" for file in found.files)
        assert {f.code for f in found.findings} == {"P004"}

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        (tmp_path / paths.CONFIG).mkdir()
        os.mkfifo(tmp_path / OFFSETS)
        assert self.read(tmp_path)[1] == ["P004"]

    def test_a_link_that_leads_nowhere_counts_as_missing(self, tmp_path: Path) -> None:
        (tmp_path / paths.CONFIG).mkdir()
        (tmp_path / OFFSETS).symlink_to("nowhere")
        assert self.read(tmp_path)[1] == []

    def test_a_huge_file_is_not_read(self, tmp_path: Path) -> None:
        write(tmp_path / OFFSETS, "{")
        os.truncate(tmp_path / OFFSETS, MAX_SIZE_BYTES + 1)
        found = read_config(tmp_path)
        assert [f.code for f in found.findings] == ["P010"]
        assert "larger than" in found.findings[0].message

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / paths.CONFIG).mkdir()
        (tmp_path / OFFSETS).write_bytes(b'{"offsetTable":{"caf\xe9@g":{0:5}}}')
        assert self.read(tmp_path)[1] == []
        assert offset_table(read_config(tmp_path)) == {("g", "caf\ufffd", 0): 5}

    @pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"{" * 100_000, b'{"a":' * 100_000, os.urandom(2000)])
    def test_every_file_broken_at_once(self, tmp_path: Path, data: bytes) -> None:
        for file in read_config(tmp_path).files:
            path = tmp_path / file.name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            path.with_name(path.name + paths.BAK_SUFFIX).write_bytes(data)
        (tmp_path / paths.TIMERCHECK).write_bytes(data[:20])
        found = read_config(tmp_path)
        assert {f.code for f in found.findings} == {"P004"}
        assert len(found.findings) == len(found.files) == 12
        assert found.loads == (data == b"")  # empty copies are no reason to refuse
        assert found.timer_check is not None

    def test_every_prefix_of_a_timer_checkpoint(self, golden: Callable[[str], Path], tmp_path: Path) -> None:
        whole = (golden("clean-533") / paths.TIMERCHECK).read_bytes()
        told = (1795227133000, 2392, 46, 46, 0, 1795227133317, 22)
        (tmp_path / paths.CONFIG).mkdir()
        for length in range(65):
            (tmp_path / paths.TIMERCHECK).write_bytes(whole[:length])
            check = read_config(tmp_path).timer_check
            assert check is not None
            whole_fields = min(length // 8, len(told))
            values = astuple(check)
            assert values[:whole_fields] == told[:whole_fields]
            assert not any(values[whole_fields + 1 :])

    def test_a_file_that_is_being_rewritten_is_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / OFFSETS, '{"offsetTable":{"T@')
        monkeypatch.setattr(config_files, "_MOMENT_SECONDS", 0.3)
        writer = threading.Timer(0.05, write, [tmp_path / OFFSETS, '{"offsetTable":{"T@g":{0:5}}}'])
        writer.start()
        file = read_config_file(tmp_path, OFFSETS)
        writer.join()
        assert (file.source, file.value["offsets"]) == ("main", {"T@g": {0: 5}})


class TestOffsetTable:
    def table(self, root: Path, usual: str | None, lmq: str | None = None) -> dict[tuple[str, str, int], int]:
        write(root / OFFSETS, usual)
        write(root / paths.LMQ_CONSUMER_OFFSET_JSON, lmq)
        return offset_table(read_config(root))

    def test_keys_that_are_not_topic_at_group_are_left_out(self, tmp_path: Path) -> None:
        text = '{"offsetTable":{"T@g":{0:1,3:4},"T":{0:1},"@g":{0:1},"T@":{0:1},"%RETRY%g@g":{0:9}}}'
        assert self.table(tmp_path, text) == {("g", "T", 0): 1, ("g", "T", 3): 4, ("g", "%RETRY%g", 0): 9}

    def test_a_group_with_the_sign_that_parts_it_from_its_topic(self, tmp_path: Path) -> None:
        """Brokers 4.3.0 and 4.9.7 take its progress, and answer with it when they have started again."""
        assert self.table(tmp_path, '{"offsetTable":{"T@g@h":{0:2}}}') == {("g@h", "T", 0): 2}

    def test_light_queues_have_no_queue_level(self, tmp_path: Path) -> None:
        text = '{"lmqOffsetTable":{"%LMQ%x@%LMQ%g":17},"offsetTable":{"T@g":{0:1}}}'
        assert self.table(tmp_path, None, text) == {("%LMQ%g", "%LMQ%x", 0): 17, ("g", "T", 0): 1}

    def test_of_two_files_the_newer_counts(self, tmp_path: Path) -> None:
        self.table(tmp_path, '{"offsetTable":{"T@g":{0:1}}}', '{"offsetTable":{"T@g":{0:2}}}')
        for newer, offset in ((OFFSETS, 1), (paths.LMQ_CONSUMER_OFFSET_JSON, 2)):
            for name in (OFFSETS, paths.LMQ_CONSUMER_OFFSET_JSON):
                os.utime(tmp_path / name, (100, 200 if name == newer else 100))
            assert offset_table(read_config(tmp_path)) == {("g", "T", 0): offset}


class TestRewriting:
    @pytest.mark.parametrize("name", [n for n in stores.GOLDEN if n not in stores.WITHOUT_QUEUE_FILES])
    def test_without_changes_nothing_changes(self, golden: Callable[[str], Path], name: str) -> None:
        config = read_config(golden(name))
        if config.progress.source == "main":
            text = (golden(name) / config.progress.name).read_text("utf-8")
            assert render_consumer_offsets(config, {}) == text
        else:
            assert name == "crash-497"

    @pytest.mark.parametrize("name", ["clean-430", "clean-497", "clean-514", "clean-540"])
    def test_one_offset_more(self, golden: Callable[[str], Path], tmp_path: Path, name: str) -> None:
        config = read_config(golden(name))
        before = offset_table(config)
        (old, *_) = before
        text = render_consumer_offsets(config, {old: 99, ("new", "T", 2): 5, ("new", "T", 0): 4})
        write(tmp_path / OFFSETS, text)
        after = read_config(tmp_path)
        assert offset_table(after) == before | {old: 99, ("new", "T", 2): 5, ("new", "T", 0): 4}
        assert after.consumer_offsets.layout == config.consumer_offsets.layout
        spread = "\n\t\t\t0:4,\n\t\t\t2:5\n\t\t}" if name == "clean-540" else "0:4,2:5\n\t\t}"
        assert f'"T@new":{{{spread}' in text
        assert ('"groupTopicMap"' in text) == (name not in ("clean-430", "clean-497"))
        assert len(text.split("\n")) > len((golden(name) / OFFSETS).read_text().split("\n"))
        assert offset_table(config) == before  # what was read is not touched

    def test_a_store_without_progress(self, tmp_path: Path) -> None:
        config = read_config(tmp_path)
        assert render_consumer_offsets(config, {("g", "T", 0): 5}, "4") == (
            '{\n\t"offsetTable":{\n\t\t"T@g":{0:5\n\t\t}\n\t}\n}'
        )
        assert render_consumer_offsets(config, {("g", "T", 0): 5}) == (
            '{\n\t"groupTopicMap":{\n\t\t"g":["T"]\n\t},\n\t"offsetTable":{\n\t\t"T@g":{0:5\n\t\t}\n\t}\n}'
        )

    def test_unusual_members_survive(self, tmp_path: Path) -> None:
        write(tmp_path / OFFSETS, '{"groupTopicMap":{"g":7},"offsetTable":{"T@g":{"3":1,0:2}},"zzz":{"own":[1]}}')
        text = render_consumer_offsets(read_config(tmp_path), {("g", "T", 1): 5}, "5")
        assert loads(text) == {
            "groupTopicMap": {"g": ["T"]},
            "offsetTable": {"T@g": {0: 2, 1: 5, 3: 1}},
            "zzz": {"own": [1]},
        }

    def test_parts_that_were_one_by_reference_part_again(self, tmp_path: Path) -> None:
        write(tmp_path / OFFSETS, '{"offsetTable":{"a@g":{0:1},"b@g":{"$ref":"$.offsetTable.a@g"}}}')
        text = render_consumer_offsets(read_config(tmp_path), {("g", "b", 0): 5}, "4")
        assert loads(text)["offsetTable"] == {"a@g": {0: 1}, "b@g": {0: 5}}

    @pytest.mark.parametrize("name", ["clean-497", "clean-533", "clean-540"])
    def test_a_topic_more(self, golden: Callable[[str], Path], tmp_path: Path, name: str) -> None:
        config = read_config(golden(name))
        text = render_topics(
            config, {"New": topic_entry("New", 4, with_attributes=name != "clean-497")}, 1_800_000_000_000
        )
        write(tmp_path / paths.TOPICS_JSON, text)
        after = read_config(tmp_path).topics
        assert after.value["topics"] == {**config.topics.value["topics"], "New": topic("New", 4, {})}
        old, new = config.topics.value["data_version"], after.value["data_version"]
        assert old is not None
        assert new == {**old, "counter": old["counter"] + 1, "timestamp_ms": 1_800_000_000_000}
        # Taken out again, and with the old version, it is the broker's own text.
        tree = loads(text)
        del tree["topicConfigTable"]["New"]
        original = loads((golden(name) / paths.TOPICS_JSON).read_text("utf-8"))
        assert list(tree["topicConfigTable"]) == list(original["topicConfigTable"])
        assert {**tree, "dataVersion": original["dataVersion"]} == original
        own = next(iter(tree["topicConfigTable"].values()))
        assert list(loads(text)["topicConfigTable"]["New"]) == list(own)
        assert json.dumps(list(tree)) == json.dumps(list(original))


class TestTooLargeToBeRead:
    """A broker may well read it, so nothing may take it for broken, lost or empty."""

    @pytest.fixture
    def root(self, store_copy: StoreCopy) -> Path:
        root = store_copy("clean-533")
        for name in (paths.TOPICS_JSON, OFFSETS):
            os.truncate(root / name, MAX_SIZE_BYTES + 1)  # zero bytes behind the end, which brokers accept
        return root

    def test_it_is_neither_read_nor_lost(self, root: Path) -> None:
        config = read_config(root)
        assert [(f.code, f.file) for f in config.findings] == [("P010", paths.TOPICS_JSON), ("P010", OFFSETS)]
        for file in (config.topics, config.progress):
            assert (file.source, file.loads, file.too_large, config.has_lost(file)) == ("none", True, True, False)

    def test_nothing_is_put_into_it(self, root: Path) -> None:
        config = read_config(root)
        with pytest.raises(FailedError, match=r"topics\.json.* too large|too large.*topics\.json"):
            render_topics(config, {}, 0)
        with pytest.raises(FailedError, match="too large"):
            render_consumer_offsets(config, {("g", "t", 0): 1})

    def test_a_start_takes_it_for_good(self, root: Path) -> None:
        with Store.open(root) as store:
            assert config_load.read_config(store, "topics.json") == config_load.ConfigFile(None)

    def test_too_many_values_are_as_bad(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_dialect, "_MAX_VALUES", 3)
        write(tmp_path / OFFSETS, '{"offsetTable":{"t@g":{0:1,1:2,2:3}}}')
        write(tmp_path / (OFFSETS + paths.BAK_SUFFIX), '{"offsetTable":{}}')
        assert read_config(tmp_path).progress.too_large


def test_a_disk_that_fails_says_nothing_about_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told that it is broken might remove what another disk can still give."""

    def refused(path: Path) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text("{}")
    monkeypatch.setattr("store_core.storage.config_files.open_read_only", refused)
    told = {found.file: found.advice for found in read_config(tmp_path).findings}
    assert "ddrescue" in told["config/topics.json"]
