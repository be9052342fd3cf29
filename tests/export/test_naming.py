"""What several stores are called, by every way of naming them."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_core.errors import UsageError
from store_core.export.naming import Called, distinct_names
from store_core.layout import paths
from store_core.storage.identity import BrokerIdentity, broker_identity
from store_core.storage.remote_path import path_of


def names(*stores: tuple[str | None, str | None, str]) -> list[str]:
    return distinct_names([Called(given, told, path_of(root)) for given, told, root in stores])


@pytest.mark.parametrize(
    ("stores", "expected"),
    [
        ([(None, None, "/data/store")], ["store"]),
        ([(None, "broker-a", "/data/store")], ["broker-a"]),
        ([("x", "broker-a", "/data/store")], ["x"]),
        ([(None, None, "/")], ["/"]),
        ([(None, None, "/a/store"), (None, None, "/b/store")], ["a/store", "b/store"]),
        ([(None, None, "/a/store"), (None, None, "/store")], ["a/store", "/store"]),
        ([(None, None, "/a/x/store"), (None, None, "/b/x/store"), (None, None, "/c")], ["a/x/store", "b/x/store", "c"]),
        ([(None, "broker-a", "/m"), (None, "broker-a", "/s")], ["m", "s"]),  # one -c for both
        ([("broker-a", None, "/m"), (None, "broker-a", "/s")], ["broker-a", "s"]),
        ([("s", None, "/m"), (None, None, "/data/s")], ["s", "data/s"]),
        ([(None, None, "s3://box/store"), (None, None, "/store")], ["box/store", "/store"]),
        ([(None, None, "/a/s\udcff"), (None, None, "/b/s\udcfe")], ["a/s\ufffd", "b/s\ufffd"]),
    ],
)
def test_no_two_names_are_alike(stores: list[tuple[str | None, str | None, str]], expected: list[str]) -> None:
    assert names(*stores) == expected


def test_one_name_for_two_is_refused() -> None:
    with pytest.raises(UsageError, match="two stores are called 'a'"):
        names(("a", None, "/m"), ("a", None, "/s"))


def test_one_store_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="two stores are one"):
        names((None, None, "/m"), (None, None, "/m"))


def test_copies_are_called_by_their_broker() -> None:
    one, two = Called(None, None, Path("/m")), Called(None, "broker-a", Path("/s"))
    assert distinct_names([Called.together([one, two])]) == ["broker-a"]
    assert distinct_names([Called.together([one, one])]) == ["m"]
    assert distinct_names([Called.together([two, Called("x", "y", Path("/t"))])]) == ["x"]


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        (b"DefaultCluster#broker-a#0", BrokerIdentity("DefaultCluster", "broker-a", 0)),
        (b"c#broker-a#12\n", BrokerIdentity("c", "broker-a", 12)),
        (b"c#broker-a", None),
        (b"c##1", None),
        (b"c#broker-a#x", None),
        (b"", None),
        (b"\xff\xfe#\xff#1", BrokerIdentity("\ufffd\ufffd", "\ufffd", 1)),
    ],
)
def test_a_store_tells_its_broker(text: bytes, identity: BrokerIdentity | None, tmp_path: Path) -> None:
    assert broker_identity(tmp_path) is None
    (tmp_path / paths.BROKER_IDENTITY).write_bytes(text)
    assert broker_identity(tmp_path) == identity
