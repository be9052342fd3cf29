"""Addresses of object stores as paths, without anybody to ask."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from store_core.errors import UsageError
from store_core.layout import paths
from store_core.storage.remote_path import RemotePath, absolute_path, path_of, real_path
from store_core.storage.settings import load_settings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("S3://Bucket/A", "s3://Bucket/A"),
        ("abfss://box@name.dfs.core.windows.net/a=b", "abfss://box@name.dfs.core.windows.net/a=b"),
    ],
)
def test_an_address_reads_as_it_was_written(text: str, shown: str) -> None:
    path = path_of(text)
    assert isinstance(path, RemotePath)
    assert (str(path), str(path / "commitlog"), path.is_absolute()) == (shown, f"{shown}/commitlog", True)
    assert pickle.loads(pickle.dumps(path)) == path
    assert isinstance(pickle.loads(pickle.dumps(path)), RemotePath)
    assert real_path(path) is absolute_path(path) is path


@pytest.mark.parametrize("text", ["/data/store", "store", "~/store", "C:/store", "a=s3:/x", "backup:/store"])
def test_everything_else_is_a_local_path(text: str) -> None:
    assert path_of(text) == Path(text)
    assert type(path_of(text)) is type(Path(text))


@pytest.mark.parametrize("text", ["file:///data/a b", "file:/data/a b", "FILE:///data/a b", "file:////data/a b"])
def test_a_file_may_be_named_by_its_address(text: str) -> None:
    assert (path_of(text), type(path_of(text))) == (Path("/data/a b"), type(Path()))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ftp://host/a", "unknown kind of address ftp://"),
        ("hdfs://host/a", "unknown kind of address hdfs://"),
        ("file://host/a", "unknown kind of address file://"),
        ("C://a", "unknown kind of address C://"),
        ("s3:/bucket/a", "an address has two slashes after its colon"),
        ("S3A:/bucket/a", "an address has two slashes after its colon"),
        ("s3://", "not the address of a folder"),
        ("s3:///", "not the address of a folder"),
        ("s3://bucket/../other", "not the address of a folder"),
    ],
)
def test_other_addresses_are_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError) as refused:
        path_of(text)
    assert refused.value.what == what


def test_the_operating_system_never_sees_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    for asks in (os.listdir, os.stat, os.path.realpath, os.path.exists, open):
        with pytest.raises(UsageError):
            asks(path_of("s3://bucket"))


def test_parts_below_a_root_are_told_from_it() -> None:
    root = path_of("s3://bucket/store")
    below = root / "commitlog" / "00000000000000000000"
    assert below.is_relative_to(root)
    assert str(below.relative_to(root)) == "commitlog/00000000000000000000"
    assert str(below.parent.parent) == "s3://bucket/store"


def test_a_brokers_paths_are_rebased_under_an_address(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        "storePathRootDir=/data/store\nstorePathCommitLog=/data/store/log-a,/data/store/log-b,/other/log\n"
    )
    settings = load_settings(config, path_of("s3://bucket/copy"))
    assert str(settings.root) == "s3://bucket/copy"
    assert list(map(str, settings.commitlog_paths)) == [
        "s3://bucket/copy/log-a",
        "s3://bucket/copy/log-b",
        "/other/log",
    ]
    assert list(map(str, settings.outside_paths)) == ["/other/log"]
    assert load_settings(None, settings.root).commitlog_paths == (settings.root / paths.COMMITLOG,)
