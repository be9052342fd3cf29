"""Which config files keep a broker from starting: every recorded pair of a file and its .bak, and what is said of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.broker.load import batch_topics, load
from store_core.broker.versions import RELEASES, Version, behaviour_of
from store_core.codec.config_fields import ConfigMembers
from store_core.codec.config_refusals import ConfigReader, Refusals
from store_core.codec.json_dialect import loads
from store_core.layout import paths
from store_core.storage.config_files import read_config
from store_core.storage.store import Store
from tests import stores
from tests.broker import oracle

TRUTH = stores.config_type_cases()
VALUES = stores.config_values()
ABSENT = None
NULL_TOPIC = '{"topicConfigTable":{"T1":null}}'
GOOD_TOPICS = '{"topicConfigTable":{"T1":{"attributes":{"queue.type":"BatchCQ"},"topicName":"T1"}}}'


def lay(path: Path, content: int | str | None) -> None:
    """What a recorded case has in a file's place."""
    if content == "folder":
        path.mkdir()
    elif isinstance(content, int):
        path.write_bytes(TRUTH["texts"][content].encode("latin-1"))


def outcomes(root: Path, file: str, case: dict[str, Any]) -> dict[str, tuple[bool, list[str]]]:
    config = root / paths.CONFIG
    (root / paths.COMMITLOG).mkdir(parents=True)
    config.mkdir()
    lay(config / file, case["main"])
    lay(config / (file + paths.BAK_SUFFIX), case["bak"])
    found = {}
    for version in (*case["starts"], *case["refuses"]):
        with Store.open(root) as store:
            loaded = load(store, behaviour_of(Version.parse(version)))
        found[version] = (not loaded.refusal, loaded.deleted_config_files)
    return found


@pytest.mark.product(160)
@pytest.mark.parametrize("name", TRUTH["cases"])
def test_a_pair_of_config_files_is_judged_as_recorded(name: str, tmp_path: Path) -> None:
    case = TRUTH["cases"][name]
    for base, by in case["by"].items():
        gone = [f"{paths.CONFIG}/{case['file']}"]
        recorded = {
            version: (version in by["starts"], gone if version in by["deletes"] else [])
            for version in (*by["starts"], *by["refuses"])
        }
        assert outcomes(tmp_path / base, case["file"], by) == recorded


@pytest.mark.parametrize("member", VALUES["members"])
def test_a_value_is_refused_by_the_releases_that_refused_it(member: str) -> None:
    file = f"{paths.CONFIG}/{member.split()[0]}"
    readers = [(b.config_members, b.config_reader) for b in map(behaviour_of, map(Version.parse, VALUES["releases"]))]
    text, recorded = VALUES["members"][member]["text"], VALUES["members"][member]["values"]
    found = {}
    for value in recorded:
        refusals = Refusals(file, loads(text % value))
        found[value] = "".join("R" if refusals.by(*reader) else "." for reader in readers)
    assert found == recorded


@pytest.mark.broker
@pytest.mark.parametrize("version", ["4.9.7", "5.5.1"])
def test_the_real_library_refuses_what_it_refused(jars: Callable[[str], Path], version: str, tmp_path: Path) -> None:
    jars(version)
    at = VALUES["releases"].index(version)
    asked, recorded = [], []
    for member, its in VALUES["members"].items():
        asked += [f"{member.split('.')[0]} {its['text'] % value}\n" for value in its["values"]]
        recorded += ["refuses" if letters[at] == "R" else "loads" for letters in its["values"].values()]
    (tmp_path / "asked").write_text("".join(asked))
    command = [*oracle.java_command(version, tmp_path / "home"), "ConfigValues", str(tmp_path / "asked")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert [line[1:] for line in said.splitlines() if line.startswith("=")] == recorded


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / paths.COMMITLOG).mkdir()
    (tmp_path / paths.CONFIG).mkdir()
    return tmp_path


def write(root: Path, name: str, main: str | None, bak: str | None) -> None:
    for path, text in ((root / name, main), (root / (name + paths.BAK_SUFFIX), bak)):
        if text is not None:
            path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "version", "why"),
    [
        (paths.TOPICS_JSON, NULL_TOPIC, "4.3.0", "topicConfigTable of T1 is null"),
        (paths.TOPICS_JSON, '{"topicConfigTable":{"T1":{"perm":"rw"}}}', "5.4.0", "perm of T1 is a text that is no number"),
        (paths.TOPICS_JSON, '{"topicConfigTable":{"T1":{"perm":[]}}}', "5.3.3", "perm of T1 is a list"),
        (paths.TOPICS_JSON, "5", "4.9.7", "it is a number"),
        (paths.CONSUMER_OFFSET_JSON, '{"offsetTable":[1]}', "5.1.4", "offsetTable is a list"),
        (paths.CONSUMER_OFFSET_JSON, '{"offsetTable":{"T@G":{0:null}}}', "4.9.7", "offsetTable of T@G, 0 is null"),
        (paths.CONSUMER_OFFSET_JSON, '{"offsetTable":{"T@G":{"a":1}}}', "4.9.7", "offsetTable of T@G has the key a"),
        (paths.CONSUMER_OFFSET_JSON, "\n", "5.4.0", "it is blank"),
        (paths.TOPIC_QUEUE_MAPPING_JSON, "{}", "5.3.3", "topicQueueMappingInfoMap is missing"),
        (
            paths.CONSUMER_FILTER_JSON,
            '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitPos":[99999999999]}}}}}}',
            "5.4.0",
            "bitPos of T, G is too large a number",
        ),
    ],
)  # fmt: skip
def test_a_refusal_tells_what_is_wrong(root: Path, name: str, text: str, version: str, why: str) -> None:
    write(root, name, text, text)
    with Store.open(root) as store:
        refusal = load(store, behaviour_of(Version.parse(version))).refusal
    assert refusal == f"{name} and its .bak copy cannot be loaded: {why}"


def test_a_torn_file_is_told_as_before(root: Path) -> None:
    write(root, paths.TOPICS_JSON, "{", "{")
    with Store.open(root) as store:
        refusals = {load(store, behaviour_of(release)).refusal for release in RELEASES}
    assert refusals == {"config/topics.json and its .bak copy are both damaged"}


@pytest.mark.parametrize("main", [NULL_TOPIC, "[1]", "{"])
@pytest.mark.parametrize(("version", "deletes"), [("4.9.7", False), ("5.3.3", False), ("5.4.0", True)])
def test_topics_come_from_the_bak_where_the_file_does_not_load(
    root: Path, main: str, version: str, deletes: bool
) -> None:
    write(root, paths.TOPICS_JSON, main, GOOD_TOPICS)
    with Store.open(root) as store:
        loaded = load(store, behaviour_of(Version.parse(version)))
    assert not loaded.refusal
    assert batch_topics(loaded) == {"T1"}
    assert loaded.deleted_config_files == ([paths.TOPICS_JSON] if deletes else [])


def test_which_of_two_values_counts_depends_on_the_release(root: Path) -> None:
    write(root, paths.TOPICS_JSON, '{"topicConfigTable":{"T1":{"perm":6,"perm":"x"}}}', ABSENT)
    value = loads((root / paths.TOPICS_JSON).read_text())
    assert value == {"topicConfigTable": {"T1": {"perm": "x"}}}
    assert not Refusals(paths.TOPICS_JSON, value).by(ConfigMembers.V4, ConfigReader.FASTJSON_61)
    assert Refusals(paths.TOPICS_JSON, value).by(ConfigMembers.V5_GROUPS, ConfigReader.FASTJSON_2)
    single_quoted = loads("{'topicConfigTable':{'T1':{'perm':6,'perm':'x'}}}")
    assert not Refusals(paths.TOPICS_JSON, single_quoted).by(ConfigMembers.V4, ConfigReader.FASTJSON_61)


def test_no_release_trips_over_members_that_it_does_not_know(root: Path) -> None:
    text = '{"foo":{"x":[1,null]},"topicConfigTable":{"T1":{"attributed":5,"topicName":null}}}'
    write(root, paths.TOPICS_JSON, text, ABSENT)
    with Store.open(root) as store:
        assert {load(store, behaviour_of(release)).refusal for release in RELEASES} == {""}
    assert read_config(root).findings == ()


def test_attributes_are_looked_at_since_5_0(root: Path) -> None:
    text = '{"topicConfigTable":{"T1":{"attributes":"x"}}}'
    write(root, paths.TOPICS_JSON, text, text)
    with Store.open(root) as store:
        refusing = [release for release in RELEASES if load(store, behaviour_of(release)).refusal]
    assert refusing == [release for release in RELEASES if release >= Version(5, 0, 0)]


def test_what_no_release_loads_is_a_finding(root: Path) -> None:
    write(root, paths.TOPICS_JSON, NULL_TOPIC, GOOD_TOPICS)
    write(root, paths.DELAY_OFFSET_JSON, '{"offsetTable":{1:null}}', '{"offsetTable":5}')
    found = read_config(root)
    assert [(f.code, f.message) for f in found.findings] == [
        ("P003", "config/topics.json: topicConfigTable of T1 is null; its .bak is read"),
        (
            "P004",
            "config/delayOffset.json: offsetTable of 1 is null; its .bak: offsetTable is a number: a broker refuses to start",
        ),
    ]
    assert set(found.topics.value["topics"]) == {"T1"}
    assert Refusals(paths.TOPICS_JSON, loads(NULL_TOPIC)).by_all() == "topicConfigTable of T1 is null"
    assert Refusals(paths.TOPICS_JSON, loads(GOOD_TOPICS)).by_all() == ""


def test_what_some_releases_load_is_told_so(root: Path) -> None:
    text = '{"dataVersion":"x","offsetTable":{}}'
    write(root, paths.CONSUMER_OFFSET_JSON, text, text)
    told = [f.message for f in read_config(root).findings]
    assert [m.rpartition(": ")[2] for m in told] == ["brokers of some releases refuse to start"]


@pytest.mark.parametrize(
    "text", ["9" * 5000, "-" + "9" * 5000, "1" * 100_000 + "x", "0" * 5000 + "7", "1" + "0" * 5000]
)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("topics.json", '{"topicConfigTable":{"T":{"perm":"%s","topicFilterType":"%s","order":"%s"}}}'),
        ("consumerOffset.json", '{"offsetTable":{"a@b":{"%s":"%s","0":"%s"}}}'),
        ("delayOffset.json", '{"offsetTable":{"%s":"%s","1":"%s"}}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"G":{"brokerId":"%s","x":"%s","groupName":"%s"}}}'),
    ],
)
def test_texts_of_very_many_digits(root: Path, name: str, form: str, text: str) -> None:
    """Neither an error of ours nor a wait."""
    value = loads((form % (text, text, text)).encode())
    Refusals(f"{paths.CONFIG}/{name}", value)
    (root / paths.CONFIG / name).write_text(form % (text, text, text))
    with Store.open(root) as store:
        for version in RELEASES:
            load(store, behaviour_of(Version.parse(version) if isinstance(version, str) else version))


def test_a_chain_of_references_nests_deeper_than_any_text(root: Path) -> None:
    def deep(what: str) -> str:
        return '{"x":' * 110 + what + "}" * 110

    members = [f'"a{n}":' + deep(f'{{"$ref":"$.a{n - 1}"}}' if n else "1") for n in range(20)]
    (root / paths.CONFIG / "topics.json").write_text("{" + ",".join(members) + "}")
    with Store.open(root) as store:
        load(store, behaviour_of(Version.parse("5.4.0")))
