"""Releases: how they are written, ordered, and which column of the table they fall into."""

from __future__ import annotations

import pytest

from store_core.broker.versions import (
    RELEASES,
    CleanStart,
    CrashStart,
    MinOffsetSearch,
    QueueCut,
    Version,
    behaviour_of,
    groups_of,
)
from store_core.codec.config_refusals import ConfigReader
from store_core.codec.lmq_topics import NoLists, no_lists_of
from store_core.errors import UsageError
from store_core.layout import paths

NEWEST = str(RELEASES[-1])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5.3.3", "5.3.3"),
        ("5.3", "5.3.3"),
        ("4.9", "4.9.8"),
        ("v5.4.0", "5.4.0"),
        ("5.5", NEWEST),
        ("5.5.0", "5.5.0"),
        ("5.5.1", "5.5.1"),
        (" 4.3 ", "4.3.2"),
        ("5.3.9", "5.3.9"),
    ],
)
def test_version_is_read(text: str, version: str) -> None:
    assert str(Version.parse(text)) == version


@pytest.mark.parametrize("text", ["", "5", "5.x", "3.2.6", "4.2.0", "6.0.0", "5.3.3-SNAPSHOT"])
def test_unknown_version_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Version.parse(text)


def test_releases_are_in_order() -> None:
    assert list(RELEASES) == sorted(set(RELEASES))


def test_a_later_patch_behaves_as_its_line() -> None:
    assert behaviour_of(Version.parse("5.3.9")) == behaviour_of(Version.parse("5.3.3"))


# The last column says since when; a release in front of it has the other value. Behaviour reference, section 17.
@pytest.mark.parametrize(
    ("feature", "value", "first", "last"),
    [
        ("clean_start", CleanStart.THIRD_LAST, "4.3.0", "5.3.1"),
        ("clean_start", CleanStart.QUEUE_END, "5.3.2", "5.3.3"),
        ("no_lists", NoLists.NOWHERE, "4.3.0", "5.1.0"),
        ("no_lists", NoLists.RETRIES, "5.1.1", "5.1.2"),
        ("no_lists", NoLists.WAITING, "5.1.3", "5.1.4"),
        ("clean_start", CleanStart.FIRST_RECORD, "5.4.0", NEWEST),
        ("crash_start", CrashStart.HEADER, "4.3.0", "5.3.3"),
        ("crash_start", CrashStart.WHOLE_RECORD, "5.4.0", "5.4.0"),
        ("crash_start", CrashStart.QUEUE_OFFSET, "5.5.0", NEWEST),
        ("newest_segments_scanned", 10, "5.4.0", NEWEST),
        ("clean_start_dispatches", True, "5.3.2", NEWEST),
        ("dispatches_from_queue_end", True, "4.5.0", "4.9.8"),
        ("queue_cut", QueueCut.END_AT_LOAD, "4.3.2", "5.3.3"),
        ("queues_cut_first", True, "5.2.0", NEWEST),
        ("min_offset_search", MinOffsetSearch.LINEAR, "4.3.0", "4.9.8"),
        ("min_offset_search", MinOffsetSearch.BINARY, "5.0.0", "5.4.0"),
        ("min_offset_search", MinOffsetSearch.BINARY_WITH_EMPTY_NEWEST, "5.5.0", NEWEST),
        ("no_lists", NoLists.SYSTEM, "5.2.0", NEWEST),
        ("config_reader", ConfigReader.FASTJSON_2, "5.4.0", "5.4.0"),
        ("config_reader", ConfigReader.FASTJSON_2_59, "5.5.0", NEWEST),
        ("refuses_negative_blanks", True, "5.5.1", NEWEST),
        ("bounds_own_offset", True, "5.5.0", NEWEST),
        ("scans_from_queue_offset", True, "5.5.0", NEWEST),
        ("folders_ignored", True, "5.1.0", NEWEST),
        ("empty_last_deleted", True, "5.1.3", NEWEST),
        ("reads_v2", True, "5.1.0", NEWEST),
        ("bounds_size", True, "5.3.2", NEWEST),
        ("verifies_property_crc", True, "5.2.0", NEWEST),
        ("batch_queues", True, "5.0.0", NEWEST),
        ("passes_light_folders", True, "5.1.3", NEWEST),
        ("late_delay_table", True, "4.9.2", "4.9.8"),
        ("timer_wheel", True, "5.0.0", NEWEST),
        ("index_tags", True, "5.4.0", NEWEST),
        ("deletes_damaged_config", True, "5.4.0", NEWEST),
        ("abort_tells_process", True, "5.0.0", NEWEST),
    ],
)
def test_feature_holds_for_exactly_these_releases(feature: str, value: object, first: str, last: str) -> None:
    having = [release for release in RELEASES if getattr(behaviour_of(release), feature) == value]
    assert having == [r for r in RELEASES if Version.parse(first) <= r <= Version.parse(last)]


def test_groups_hold_every_release_once() -> None:
    groups = groups_of(RELEASES)
    assert sorted(version for _, versions in groups for version in versions) == list(RELEASES)
    assert len({behaviour for behaviour, _ in groups}) == len(groups)


@pytest.mark.parametrize(
    ("release", "lists"),
    [
        ("3.2", NoLists.NOWHERE),
        ("4", NoLists.NOWHERE),
        ("5.0", NoLists.NOWHERE),
        ("v5.1.2", NoLists.RETRIES),
        ("5.1", NoLists.WAITING),
        ("5", NoLists.SYSTEM),
    ],
)
def test_a_line_counts_lists_as_its_newest_release(release: str, lists: NoLists) -> None:
    assert no_lists_of(release) is lists


@pytest.mark.parametrize("release", RELEASES)
def test_lists_count_alike_in_both_tables(release: Version) -> None:
    assert no_lists_of(str(release)) is behaviour_of(release).no_lists


@pytest.mark.parametrize(
    ("topic", "lists"),
    [
        ("T", []),
        ("", []),
        ("-", []),
        ("%RETRY%g", [NoLists.RETRIES, NoLists.WAITING, NoLists.SYSTEM]),
        (paths.SCHEDULE_TOPIC, [NoLists.WAITING, NoLists.SYSTEM]),
        (f"{paths.SCHEDULE_TOPIC}Y", []),
        ("rmq_sys_wheel_timer", [NoLists.WAITING, NoLists.SYSTEM]),
        ("rmq_sys_other", [NoLists.SYSTEM]),
        ("%DLQ%g", []),
    ],
)
def test_topics_without_lists(topic: str, lists: list[NoLists]) -> None:
    assert [each for each in NoLists if each.covers(topic)] == lists
