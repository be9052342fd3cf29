"""Global options, before and after the command, and what they come to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rmqctl.options import StoreName, parse_size
from store_core.errors import UsageError
from tests.rmqctl.calls import artificial, call

HOME = Path("~").expanduser()
DEFAULTS: dict[str, Any] = {
    "stores": [],
    "config": None,
    "commitlog": [],
    "format": "json",
    "quiet": False,
    "verbose": False,
    "no_color": False,
    "no_progress": False,
    "broker_version": None,
    "zone": "UTC",
    "begin": None,
    "several": None,
}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["-s", "/a"], {"stores": [[None, "/a"]]}),
        (["--store", "/a"], {"stores": [[None, "/a"]]}),
        (["--store=/a"], {"stores": [[None, "/a"]]}),
        (["-s", "A=/a", "-s", "/b"], {"stores": [["A", "/a"], [None, "/b"]]}),
        (["-s", "~/x"], {"stores": [[None, f"{HOME}/x"]]}),
        (["-c", "/b.conf"], {"config": "/b.conf"}),
        (["--config", "~/b.conf"], {"config": f"{HOME}/b.conf"}),
        (["--commitlog", "/log"], {"commitlog": ["/log"]}),
        (["-q"], {"quiet": True}),
        (["--quiet"], {"quiet": True}),
        (["-v"], {"verbose": True}),
        (["--verbose"], {"verbose": True}),
        (["-qv"], {"quiet": True, "verbose": True}),
        (["--no-color"], {"no_color": True}),
        (["--no-progress"], {"no_progress": True}),
        (["--broker-version", "4.9.7"], {"broker_version": "4.9.7"}),
        (["--broker-version", "5.4"], {"broker_version": "5.4"}),
        (["--broker-version", "5.5"], {"broker_version": "5.5"}),
        (["--broker-version", "5.5.1"], {"broker_version": "5.5.1"}),
        (["--tz", "UTC"], {}),
        (["--tz", "+08:00"], {"zone": "UTC+08:00"}),
    ],
)
def test_every_global_option_before_and_after(place: str, words: list[str], changes: dict[str, Any]) -> None:
    split = [*words, "-ojson", "options"] if place == "before" else ["options", *words, "-o", "json"]
    result = artificial(*split)
    assert (result.code, result.err) == (0, "")
    assert result.json == {**DEFAULTS, **changes}


def test_the_later_word_counts_and_stores_add_up() -> None:
    words = ["-s", "/a", "-c", "/1", "--tz", "UTC", "-o", "csv", "options"]
    result = artificial(*words, "-s", "/b", "-c", "/2", "--tz", "+01:00", "-o", "json")
    assert result.json == {**DEFAULTS, "stores": [[None, "/a"], [None, "/b"]], "config": "/2", "zone": "UTC+01:00"}


def test_the_environment_names_a_store_where_the_words_name_none() -> None:
    assert artificial("options", "-o", "json", RMQCTL_STORE="E=/e").json["stores"] == [["E", "/e"]]
    assert artificial("options", "-o", "json", "-s", "/a", RMQCTL_STORE="/e").json["stores"] == [[None, "/a"]]
    assert artificial("options", "-o", "json", RMQCTL_STORE="").json["stores"] == []


def test_the_default_store_is_the_brokers(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathRootDir=/from/conf\n")
    root = "-o", "json", "one-store"
    assert artificial(*root, HOME="/home/x").json == {"root": "/home/x/store"}
    assert artificial(*root, "-c", conf).json == {"root": "/from/conf"}
    assert artificial(*root, "-c", conf, RMQCTL_STORE="/env").json == {"root": "/env"}
    assert artificial(*root, "-c", conf, "-s", "/word", RMQCTL_STORE="/env").json == {"root": "/word"}


def test_a_command_on_one_store_refuses_two() -> None:
    result = artificial("-s", "/a", "one-store", "-s", "/b")
    assert (result.code, result.err) == (2, "error: one-store works on one store: name one store with -s\n")


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("/a/b", None, "/a/b"),
        ("a=b", "a", "b"),
        ("a=/b=c", "a", "/b=c"),
        ("/x=y", None, "/x=y"),
        ("./x=y", None, "./x=y"),
        ("d/x=y", None, "d/x=y"),
        ("./=x", None, "./=x"),
        ("broker-a=../s", "broker-a", "../s"),
    ],
)
def test_a_name_stands_before_an_equals_sign_that_comes_before_any_slash(
    text: str, name: str | None, path: str
) -> None:
    assert StoreName.parse(text) == StoreName(name, Path(path))


def test_a_path_that_is_there_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=y/store").mkdir(parents=True)
    assert StoreName.parse("x=y/store") == StoreName(None, Path("x=y/store"))
    (tmp_path / "y/store").mkdir(parents=True)
    assert StoreName.parse("x=y/store") == StoreName("x", Path("y/store"))
    for name in ("a=", "=y"):
        (tmp_path / name).mkdir()
        assert StoreName.parse(name) == StoreName(None, Path(name))


@pytest.mark.parametrize(("text", "missing"), [("a=", "PATH after"), ("=x", "NAME before"), ("=/x", "NAME before")])
def test_a_name_without_a_path_and_a_path_without_a_name(text: str, missing: str) -> None:
    result = call("checkpoint", "-s", text)
    assert (result.code, result.err) == (
        2,
        f"error: there is no {missing} the = ({text}): give NAME=PATH, or PATH alone\n",
    )


def test_an_empty_store_is_no_store() -> None:
    result = call("checkpoint", "-s", "")
    assert (result.code, result.err) == (2, "error: the store path is empty: name the store's root with -s\n")


def test_store_names(golden: Any, tmp_path: Path) -> None:
    a, b = golden("clean-533"), golden("clean-497")
    assert artificial("opens", "-s", a, "-s", f"x={b}", "-o", "json").json == {"stores": ["clean-533", "x"]}
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-a\n")
    assert artificial("opens", "-s", a, "-c", conf, "-o", "json").json == {"stores": ["broker-a"]}
    twice = artificial("opens", "-s", a, "-s", a)
    assert twice.code == 2
    assert twice.err == f"error: two stores are one ({a}): name each store once, or its copies with -s NAME=PATH\n"


@pytest.mark.parametrize("words", [["--begin", "-15m"], ["--begin=-15m"]])
def test_an_age_is_a_value_although_it_starts_with_a_dash(words: list[str]) -> None:
    begin = artificial("options", *words, "-o", "json").json["begin"]
    assert abs(time.time() * 1000 - 15 * 60_000 - begin) < 60_000


@pytest.mark.parametrize("place", ["before", "after"])
def test_times_without_offset_are_read_in_the_zone(place: str) -> None:
    zone = ["--tz", "+08:00"]
    words = ["options", "--begin", "2026-11-21T10:12:05.343", "-o", "json"]
    result = artificial(*zone, *words) if place == "before" else artificial(*words, *zone)
    assert result.json["begin"] == 1_795_227_125_343


def test_a_bad_time_names_its_option() -> None:
    result = artificial("options", "--begin", "soon")
    assert result.code == 2
    assert result.err.startswith("error: invalid value 'soon' for --begin: give ISO 8601")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("version", ["4.2", "5.6", "6", "x", "5.3.3.1", ""])
def test_unknown_broker_versions(version: str) -> None:
    result = artificial("options", "--broker-version", version)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: unknown broker version {version!r}: give 4.3 to 5.5, such as 4.9.7 or 5.3\n"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("64k", 65536), ("1.5GiB", 3 << 29), ("2 MB", 2 << 20), ("1T", 1 << 40), ("7b", 7)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "k", "1x", "1 2", "0x10"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    "words", [["--version"], ["-s", "/a", "--version"], ["checkpoint", "--version"], ["-q", "explain", "--version"]]
)
def test_the_version(words: list[str]) -> None:
    from rmqctl import __version__

    result = call(*words)
    assert (result.code, result.out, result.err) == (0, f"rmqctl {__version__}\n", "")


def test_quiet_and_verbose_talk() -> None:
    def talk(*words: str) -> list[str]:
        result = artificial("work", *words, "-o", "ndjson")
        assert (result.code, result.lines) == (0, [{"done": True}])
        return result.err.splitlines()

    assert talk() == ["note: a note", "warning: a warning"]
    assert talk("-v") == ["note: a note", "a detail", "warning: a warning"]
    assert talk("-q") == []
    assert talk("-q", "-v") == []
