"""Many small files of a result, on a disk and in object stores."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import sleep

import pytest

from store_core.errors import FailedError
from store_core.storage.objects import LocalObjects, Objects, RemoteObjects, objects_at
from store_core.storage.remote_path import path_of
from tests.object_stores import ObjectStore

FILES = {f"notes/{number}.note": f"{number}".encode() * number for number in range(20)}


def _write_and_remove(objects: Objects) -> None:
    for name, data in FILES.items():
        objects.write(name, data)
    asked = [*FILES, "notes/none.note"]
    assert objects.read_all(asked) == FILES
    assert objects.read_all([]) == {}
    lengths = {name: len(data) for name, data in FILES.items()}
    assert objects.sizes(asked) == lengths  # asked one by one
    many = [f"notes/none-{number}" for number in range(100)]
    assert {
        name: size for name, size in objects.sizes([*asked, *many]).items() if name in asked
    } == lengths  # by a listing
    objects.remove_all(asked[3:])
    assert objects.names("notes") == sorted(asked[:3])
    objects.remove_all([])
    objects.remove_all(asked[:1])
    assert objects.names("notes") == sorted(asked[1:3])


def test_on_a_disk(tmp_path: Path) -> None:
    _write_and_remove(LocalObjects(tmp_path))


def test_in_an_object_store(any_object_store: ObjectStore) -> None:
    _write_and_remove(objects_at(path_of(any_object_store.address("many"))))


def test_who_may_not_remove_asks_once(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(_: RemoteObjects, name: str) -> None:
        asked.append(name)
        raise FailedError("access is denied")

    objects = objects_at(path_of(object_store.address("kept")))
    monkeypatch.setattr(RemoteObjects, "remove", refuse)
    with pytest.raises(FailedError, match="access is denied"):
        objects.remove_all(["a", "b", "c"])
    assert asked == ["a"]


def test_behind_a_refusal_nothing_is_under_way(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, other = set[str](), set[str](), Event()

    def remove(_: RemoteObjects, name: str) -> None:
        begun.add(name)
        if name == "b":
            other.wait()
            raise FailedError("access is denied")
        if name == "c":
            other.set()
        sleep(0.1)  # so that all thousand would take far longer than it takes to call them off
        ended.add(name)

    objects = objects_at(path_of(object_store.address("kept")))
    monkeypatch.setattr(RemoteObjects, "remove", remove)
    with pytest.raises(FailedError, match="access is denied"):
        objects.remove_all(["a", "b", "c", *map(str, range(1000))])
    assert ended == begun - {"b"}
    assert ended >= {"a", "c"}
    assert "999" not in begun


@pytest.mark.product(any_object_store=("s3", "abfss"))
def test_a_large_file_is_there_whole_or_not_at_all(any_object_store: ObjectStore) -> None:
    """Beyond what S3 takes in one request. Azure shows an empty one from the begin on."""
    objects = objects_at(path_of(any_object_store.address("large")))
    piece = bytes(range(256)) * 5000
    with objects.create("whole") as part:
        for _ in range(10):
            part.write(piece)
        assert any_object_store.kind == "abfss" or "whole" not in objects.names("")
    part = objects.create("dropped")
    for _ in range(10):
        part.write(piece)
    part.discard()
    assert objects.names("") == ["whole"]
    assert objects.read("whole") == piece * 10
