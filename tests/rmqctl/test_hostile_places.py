"""Pipes, devices, links and files that cannot be read, wherever a store has its files: every command ends well and writes nothing."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from rmqctl.app import main
from store_core.layout import paths
from store_core.storage.journal import JOURNAL_FILE, UNDO_FOLDER
from tests import stores
from tests.conftest import GoldenStore, StoreCopy, differences
from tests.damage import Damageable
from tests.rmqctl.calls import ROOT, call, command, environment
from tests.rmqctl.test_bad_input import COMMANDS, TOPIC, DamageableOf, deadline, index_file, queue_file

CheckAll = Callable[..., str]
_DEADLINE_SECONDS: Final = 10
_NAME: Final = "load-533"
_ENDS: Final = (0, 1, 2, 3, 10)

# Every file a command may open, by what it is to the store.
PLACES: Final[dict[str, Callable[[Damageable], Path]]] = {
    "a segment": lambda s: s.segments[3],
    "the last segment": lambda s: s.segments[-1],
    "a queue file": queue_file,
    "an index file": index_file,
    "the checkpoint": lambda s: s.root / paths.CHECKPOINT,
    "topics.json": lambda s: s.root / paths.TOPICS_JSON,
    "consumerOffset.json": lambda s: s.root / paths.CONSUMER_OFFSET_JSON,
    "lock": lambda s: s.root / paths.LOCK,
    "abort": lambda s: s.root / paths.ABORT,
    "an undo journal": lambda s: s.root / UNDO_FOLDER / "0001-recover-12345678" / JOURNAL_FILE,
    "the RocksDB mark": lambda s: s.root / paths.CONSUMEQUEUE / paths.ROCKSDB_MARK,
}


def link_to_device(path: Path) -> None:
    """A link to a device that never ends; a node of its own only root could make."""
    path.symlink_to("/dev/zero")


def put_link_out(path: Path, target: Path) -> None:
    """Move what is there out of the store and link to it."""
    path.rename(target)
    path.symlink_to(target)


def link_to_itself(path: Path, target: str = "") -> None:
    shutil.rmtree(path)
    path.symlink_to(target or path.name)


def odd_names(folder: Path, file_size_bytes: int) -> None:
    """Names of 20 digits that no file of this size can have: one file as long as the others, one short, one empty."""
    for offset, length in ((777, file_size_bytes), (file_size_bytes + 1, 100), (5 * file_size_bytes - 1, 0)):
        (folder / paths.segment_name(offset)).write_bytes(b"\x7f" * length)


FOLDERS: Final[dict[str, Callable[[Damageable], object]]] = {
    "consumequeue lies elsewhere": lambda s: put_link_out(s.root / paths.CONSUMEQUEUE, s.root.parent / "cq"),
    "commitlog lies elsewhere": lambda s: put_link_out(s.root / paths.COMMITLOG, s.root.parent / "log"),
    "a topic lies elsewhere": lambda s: put_link_out(s.root / paths.CONSUMEQUEUE / TOPIC, s.root.parent / "topic"),
    "the index lies elsewhere": lambda s: put_link_out(s.root / paths.INDEX, s.root.parent / "index"),
    "consumequeue leads to itself": lambda s: link_to_itself(s.root / paths.CONSUMEQUEUE),
    "commitlog leads to itself": lambda s: link_to_itself(s.root / paths.COMMITLOG),
    "a queue leads back to its topic": lambda s: (s.root / paths.CONSUMEQUEUE / TOPIC / "77").symlink_to(".."),
    "a topic leads back to the root": lambda s: (s.root / paths.CONSUMEQUEUE / "Round").symlink_to("../.."),
    "config leads to the root": lambda s: link_to_itself(s.root / paths.CONFIG, "."),
    "names off the grid in the log": lambda s: odd_names(s.root / paths.COMMITLOG, s.segment_size_bytes),
    "names off the grid in a queue": lambda s: odd_names(queue_file(s).parent, s.queue_file_size_bytes),
    "an empty queue file": lambda s: os.truncate(queue_file(s), 0),
    "a queue file of odd length": lambda s: os.truncate(queue_file(s), 2 * 20 + 7),
    "an index file of odd length": lambda s: os.truncate(index_file(s), 1001),
    "an empty checkpoint": lambda s: os.truncate(s.root / paths.CHECKPOINT, 0),
}  # fmt: skip


@pytest.fixture
def check_all(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CheckAll:
    """``check_all(root)``: each command ends in time with an answer or an error of its own, and changes nothing; gives all words."""
    monkeypatch.delenv("RMQCTL_STORE", raising=False)
    results = tmp_path_factory.mktemp("results")
    more = (f"recover --save {results}/plan.json", f"export {results}/export --overwrite --jobs 1", "tail")

    def run(root: Path, meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext) -> str:
        before = stores.snapshot(root.parent)
        wrong, said = [], ""
        for words in (*COMMANDS, *more):
            with deadline(_DEADLINE_SECONDS), meanwhile():
                code = main([*words.split(), "-s", str(root), "-o", "json"])
            out, err = capfd.readouterr()
            said += out + err
            found = _error_in(out)
            if (
                code not in _ENDS
                or found == "internal"
                or "Traceback" in err
                or (found is not None and "error: " not in err)
            ):
                wrong.append((words, code, found, err[-300:]))
        assert wrong == []
        assert differences(before, stores.snapshot(root.parent)) == []
        return said

    return run


def _error_in(out: str) -> Any:
    try:
        return json.loads(out).get("error", {}).get("code")
    except ValueError:
        return f"no document: {out[-200:]}"


CASES: Final = [
    *((place, os.mkfifo) for place in PLACES),
    *((place, link_to_device) for place in ("the last segment", "the checkpoint", "topics.json", "an undo journal")),
]


@pytest.mark.product(4)
@pytest.mark.leaves_damage("an undo journal that is a pipe cannot be read afterwards either")
@pytest.mark.parametrize(("place", "put"), CASES, ids=[f"{place}-{put.__name__}" for place, put in CASES])
def test_no_pipe_and_no_device_is_waited_for(
    place: str, put: Callable[[Path], None], damageable: DamageableOf, check_all: CheckAll
) -> None:
    store = damageable(_NAME)
    path = PLACES[place](store)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(path)
    check_all(store.root)


@pytest.mark.product(4)
@pytest.mark.parametrize("bad", FOLDERS)
def test_links_and_odd_files(bad: str, damageable: DamageableOf, check_all: CheckAll) -> None:
    store = damageable(_NAME)
    FOLDERS[bad](store)
    check_all(store.root)


@contextmanager
def refusing(target: Path, number: int) -> Iterator[None]:
    """The system will not open this file or list this folder."""
    names = (target, str(target), os.fsencode(target))

    def instead_of(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if path in names:
                raise OSError(number, os.strerror(number), str(target))
            return real(path, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((os, "open"), (os, "scandir"), (os, "listdir"), (builtins, "open"), (io, "open")):
            patch.setattr(module, name, instead_of(getattr(module, name)))
        yield


UNREADABLE: Final[dict[str, Callable[[Damageable], Path]]] = {
    **{p: PLACES[p] for p in ("a segment", "a queue file", "an index file", "the checkpoint", "topics.json")},
    "commitlog": lambda s: s.root / paths.COMMITLOG,
    "consumequeue": lambda s: s.root / paths.CONSUMEQUEUE,
    "index": lambda s: s.root / paths.INDEX,
}


@pytest.mark.product(4)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("place", UNREADABLE)
def test_what_cannot_be_read_is_told(
    place: str,
    number: int,
    damageable: DamageableOf,
    check_all: CheckAll,
) -> None:
    """Modes say nothing to a root user, so the system calls are replaced."""
    store = damageable(_NAME)
    path = UNREADABLE[place](store)
    said = check_all(store.root, lambda: refusing(path, number))
    assert os.strerror(number) in said
    assert path.name in said


@pytest.mark.parametrize("put", [os.mkfifo, link_to_device, os.mkdir], ids=["pipe", "device", "folder"])
@pytest.mark.parametrize("words", ["checkpoint -c", "apply", "verify-crc --resume --state", "put Calm_orders -c"])
def test_files_that_are_named_are_files(
    words: str, put: Callable[[Path], None], tmp_path: Path, golden: GoldenStore, capfd: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "named"
    put(named)
    with deadline(_DEADLINE_SECONDS):
        code = main([*words.split(), str(named), "-s", str(golden(_NAME)), *(["x"] if words.startswith("put") else [])])
    err = capfd.readouterr().err
    assert (code in (1, 2), err.startswith("error: cannot read"), str(named) in err) == (True, True, True), err


IN_THE_WAY: Final[dict[str, tuple[str, Callable[[Path], object], str]]] = {
    "a segment is a folder": ("commitlog/00000000000000131072", Path.mkdir, "move it out of the store"),
    "a segment is a pipe": ("commitlog/00000000000000131072", os.mkfifo, "move it out of the store"),
    "a segment is on a disk that is not mounted": (
        "commitlog/00000000000000131072",
        lambda path: path.symlink_to("/nowhere/at/all"),
        "mount the disk that it leads to",
    ),
    "a segment's name is far off": (
        "commitlog/00100000000000000000",
        lambda path: shutil.copy2(path.with_name("0" * 20), path),
        "rename it or move it out",
    ),
    "a segment's name is beyond all offsets": (
        "commitlog/09223372036854644736",
        lambda path: shutil.copy2(path.with_name("0" * 20), path),
        "rename it or move it out",
    ),
    "a queue file is a folder": (f"consumequeue/{TOPIC}/0/00000000000000000000", Path.mkdir, "a folder stands where a"),
    "the index is a file": (paths.INDEX, Path.touch, "move it away"),
    "config is a file": (paths.CONFIG, Path.touch, "move it away"),
    "our own folder is a file": (paths.OURS, Path.touch, "move it away"),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_stands_in_the_way_of_mending_is_told(name: str, store_copy: StoreCopy) -> None:
    """Nobody knows whose it is, and it may be all that tells where something is: nothing is changed."""
    root = store_copy(_NAME, "crash")
    place, make, advice = IN_THE_WAY[name]
    path = root / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)
    before = stores.snapshot(root)
    for words in (("recover", "--apply", "--yes"), ("rebuild", "all")):
        result = call(*words, "-s", root, "-o", "json")
        assert result.code == 1, result.err
        assert place in result.err
        assert advice in result.err
        assert differences(before, stores.snapshot(root)) == []


@pytest.mark.parametrize("place", [paths.ABORT, "index/20260101000000000"])
def test_an_empty_folder_that_stops_a_broker_goes_and_comes_back(place: str, store_copy: StoreCopy) -> None:
    root = store_copy(_NAME)
    (root / place).mkdir()
    before = stores.snapshot(root)
    assert place in {found["file"] for found in call("check", "-s", root, "-o", "json").json["findings"]}
    document = call("recover", "--apply", "-s", root, "-o", "json").json
    assert [(step["op"], step["path"]) for step in document["plan"]["steps"]] == [("remove folder", place)]
    assert (document["after"]["starts"], document["findings"]) == (True, [])
    assert call("undo", "--apply", "-s", root).code == 0
    now = {path: entry for path, entry in stores.snapshot(root).items() if not path.startswith(paths.OURS)}
    assert differences(before, now) == []


def test_a_pipe_for_a_checkpoint_is_a_finding(store_copy: StoreCopy) -> None:
    root = store_copy(_NAME)
    (root / paths.CHECKPOINT).unlink()
    os.mkfifo(root / paths.CHECKPOINT)
    result = call("check", "-s", root, "-o", "json")
    assert (result.code, [(f["code"], f["file"]) for f in result.json["findings"]]) == (3, [("S008", paths.CHECKPOINT)])
    assert "a pipe or a device, no file" in (refused := call("info", "-s", root)).err
    assert "move it away" in refused.err


def test_a_configuration_may_come_through_a_pipe(golden: GoldenStore) -> None:
    words = shlex.join(command("checkpoint", "-s", golden(_NAME)))
    piped = ["bash", "-c", f"{words} -c <(echo mappedFileSizeCommitLog=odd)"]
    done = subprocess.run(piped, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, "mappedFileSizeCommitLog=odd is no positive number" in done.stderr) == (2, True)


@pytest.mark.parametrize("place", [paths.CONSUMEQUEUE, f"{paths.CONSUMEQUEUE}/{TOPIC}", paths.INDEX, paths.COMMITLOG])
def test_put_does_not_follow_a_link_out_of_the_store_and_begins_nothing(
    place: str, store_copy: StoreCopy, tmp_path: Path
) -> None:
    root = store_copy(_NAME)
    put_link_out(root / place, tmp_path / "elsewhere")
    before = stores.snapshot(tmp_path)
    refused = call("put", TOPIC, "x", "-s", root, "-o", "json")
    assert (refused.code, refused.json["error"]["code"]) == (2, "usage")
    assert "lies outside the store and is not written to" in refused.err
    assert differences(before, stores.snapshot(tmp_path)) == []


@pytest.mark.parametrize(
    "words", [("info",), ("check",), ("recover",), ("verify-crc",), ("export", "out")], ids=lambda w: w[0]
)
def test_a_store_whose_path_is_no_utf8(words: tuple[str, ...], store_copy: StoreCopy, tmp_path: Path) -> None:
    root = os.path.join(os.fsencode(tmp_path), b"a\xff store")
    os.rename(store_copy(_NAME), root)
    words = (*words[:1], *(str(tmp_path / word) for word in words[1:]))
    for output in ("json", "plain"):
        done = subprocess.run(
            [*command(*words), "-s", root, "-o", output], cwd=ROOT, env=environment(), capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert "\\udc" not in done.stdout.decode()
        assert "a\ufffd store" in done.stdout.decode() or (words[0], output) == ("recover", "plain")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    missing = subprocess.run(
        [*command(*words), "-s", root + b"/x", "-o", "json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert json.loads(missing.stdout)["error"]["path"].endswith("/a\ufffd store/x")
    assert "/a\ufffd store/x" in missing.stderr.decode()


@pytest.mark.parametrize("what", [("put", TOPIC), ("put", TOPIC, "--file"), ("sql",)], ids=" ".join)
def test_a_closed_standard_input_is_no_empty_text(what: tuple[str, ...], store_copy: StoreCopy) -> None:
    root = store_copy(_NAME)
    before = stores.snapshot(root)
    words = shlex.join(command(*what, "-", "-s", root))
    done = subprocess.run(
        ["/bin/sh", "-c", f"{words} <&-"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: standard input is closed: pipe something in, or name a file\n"
    assert stores.snapshot(root) == before


@pytest.mark.parametrize("words", [("info",), ("dump-cq", "--all")], ids=lambda words: words[0])
def test_a_file_in_place_of_the_queues_is_told(words: tuple[str, ...], store_copy: StoreCopy) -> None:
    root = store_copy("load-533")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    (root / paths.CONSUMEQUEUE).write_bytes(b"x")
    result = call(*words, "-s", root, "-o", "json")
    document = result.json["stores"][0] if words == ("info",) else result.json
    told = [(f["code"], f["file"]) for f in document["findings"] if f["code"] == "S008"]
    assert (result.code, told) == (3, [("S008", paths.CONSUMEQUEUE)])


def test_info_tells_of_a_folder_in_the_checkpoints_place(store_copy: StoreCopy) -> None:
    """And of all that it can read beside it."""
    root = store_copy(_NAME)
    path = root / paths.CHECKPOINT
    path.unlink()
    path.mkdir()
    result = call("info", "-s", root, "-o", "json")
    assert result.code == 3, result.err
    (told,) = result.json["stores"]
    assert [(found["code"], found["file"]) for found in told["findings"]] == [("S008", paths.CHECKPOINT)]
    assert told["checkpoint"]["physic_msg_timestamp_ms"] is None
    assert told["would_start"]["reason"] == "checkpoint is a folder"
