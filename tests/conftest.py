"""Fixtures of all tests: golden stores, copies of them, damaged copies; and ``--no-skips`` for machines that must run everything."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from shutil import disk_usage
from typing import Final

import pytest
from hypothesis import settings as hypothesis_settings

from store_core.storage import live
from tests import object_stores, stores, tiers
from tests.alone import nobody
from tests.azurite import NoAzuriteError
from tests.damage import Damageable
from tests.surgery import Exit, apply_case, set_exit

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 8 << 30  # of which a run takes a tenth
_MANY_FILES: Final = 30
GoldenStore = Callable[[str], Path]
StoreCopy = Callable[..., Path]
DamagedStore = Callable[..., Path]

# An example may take as long as a busy machine makes it.
hypothesis_settings.register_profile("untimed", deadline=None, max_examples=40)
hypothesis_settings.register_profile("thorough", deadline=None, max_examples=1000)  # make exhaustive
hypothesis_settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails: for machines that have everything")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("basetemp") is None and _memory_has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # Tests start thousands of processes, each of which would else compile the program for itself.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Started behind a shell's "&" or by nohup we would hand ignored signals down to the commands under test.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which finds nothing, and let it pass over what stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return 0 for a small run, which starts at once; else one more than there are processors, as many tests wait for a server."""
    if config.option.keyword or getattr(config.option, "lf", False) or _test_files(config.args) < _MANY_FILES:
        return 0
    return len(os.sched_getaffinity(0)) + 1


def _test_files(args: Sequence[str]) -> int:
    """Count the files with tests that are named or lie in a folder that is named."""
    paths = {Path(arg.partition("::")[0]).resolve() for arg in args}
    return len({file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])})


def _memory_has_room() -> bool:
    """Whether what tests write fits into memory: very many small files, for which some disks take a millisecond each."""
    if not os.access(MEMORY, os.W_OK):
        return False
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    return available is not None and int(available[1]) << 10 > ROOM_BYTES < disk_usage(MEMORY).free


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail_if_skips_may_not_be(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail_if_skips_may_not_be(collector.config, report)
    return report


def _fail_if_skips_may_not_be(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    if config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped although nothing may be (--no-skips): {report.longrepr}"


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoldenStore]:
    """``golden(name)``: the shared unpacked store. Only for reading: whoever changes it fails the session."""
    folder = tmp_path_factory.mktemp("golden")
    found: dict[str, dict[str, stores.Entry]] = {}

    def unpacked(name: str) -> Path:
        root = folder / name
        if name not in found:
            found[name] = stores.snapshot(stores.unpack(name, root))
        return root

    yield unpacked
    changed = {name: differences(before, stores.snapshot(folder / name)) for name, before in found.items()}
    assert not any(changed.values()), f"a test changed a shared golden store: {changed}"


def differences(before: dict[str, stores.Entry], after: dict[str, stores.Entry]) -> list[str]:
    """Paths that came, went or changed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


@pytest.fixture(scope="session")
def _object_stores() -> Iterator[Callable[[object_stores.Kind], object_stores.ObjectStore]]:
    with ExitStack() as stack:

        @cache
        def running(kind: object_stores.Kind) -> object_stores.ObjectStore:
            try:
                return stack.enter_context(object_stores.running(kind))
            except NoAzuriteError as error:
                pytest.skip(str(error))

        yield running


@pytest.fixture
def object_store(
    _object_stores: Callable[[object_stores.Kind], object_stores.ObjectStore],
) -> Iterator[object_stores.ObjectStore]:
    """A server that speaks S3, and an environment in which this process and its children find it; ``put(root)`` a store."""
    store = _object_stores("s3")
    with object_stores.in_environment(store.environment):
        yield store


@pytest.fixture(params=object_stores.KINDS)
def any_object_store(
    _object_stores: Callable[[object_stores.Kind], object_stores.ObjectStore], request: pytest.FixtureRequest
) -> Iterator[object_stores.ObjectStore]:
    """As ``object_store``, once for each kind of object store. Without npm there is none of Azure's kind: skipped then."""
    store = _object_stores(request.param)
    with object_stores.in_environment(store.environment):
        yield store


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let commands find no other process at work, except beside a real broker and in tests marked ``beside``; a lock is seen all the same.

    Searching all processes of a machine takes most of the time of many a command. Copies of the program (tests/rmqctl/warm.py) take this
    over; processes of their own do not.
    """
    if "jars" in request.fixturenames or request.node.get_closest_marker("beside") is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "processes_with_files_open", nobody)
        yield


@pytest.fixture
def store_copy(golden: GoldenStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StoreCopy]:
    """``store_copy(name, exit=None)``: a fresh writable copy, times kept; exit ``clean`` or ``crash`` sets ``abort``.

    A copy to which a plan was applied, and not undone, is checked as a whole when the test is over: nothing of severity warning or error
    may be found. ``@pytest.mark.leaves_damage(reason)`` is for tests that leave such on purpose.
    """
    made: dict[Path, str] = {}

    def copied(name: str, exit: Exit | None = None) -> Path:
        root = stores.copy_store(golden(name), tmp_path / f"{name}-{len(made)}")
        made[root] = name
        if exit:
            set_exit(root, exit)
        return root

    yield copied
    if request.node.get_closest_marker("leaves_damage") is None:
        for root, name in made.items():
            if stores.has_been_changed(root):
                config = tmp_path / f"{name}.check.conf"
                config.write_text(stores.properties_text(name))
                assert stores.faults(root, config) == []


@pytest.fixture
def damaged(store_copy: StoreCopy) -> DamagedStore:
    """``damaged(base, case, exit="crash")``: a fresh copy of ``load-497``, ``load-533`` or ``crash-533`` with a surgery or filler case applied."""

    def operated(base: str, case: str, exit: Exit = "crash") -> Path:
        root = store_copy(base)
        apply_case(root, stores.cases(base)[case], exit)
        return root

    return operated


@pytest.fixture
def damageable(store_copy: StoreCopy) -> Callable[..., Damageable]:
    """``damageable(name, exit=None)``: a fresh copy that can be harmed in a line, ``.root`` is its path (tests/damage.py)."""
    return lambda name, exit=None: Damageable(store_copy(name, exit), stores.truth(name))


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[[str], Path]:
    """``settings_of(name)``: the broker's properties file of a golden store, for ``-c``."""

    def written(name: str) -> Path:
        path = tmp_path / f"{name}.broker.conf"
        path.write_text(stores.properties_text(name))
        return path

    return written


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], Path]]:
    """``read_only(root)``: nothing below root may have changed by the end of the test: names, bytes, times."""
    seen: dict[Path, dict[str, stores.Entry]] = {}

    def remembered(root: Path) -> Path:
        seen[root] = stores.snapshot(root)
        return root

    yield remembered
    changed = {str(root): differences(before, stores.snapshot(root)) for root, before in seen.items()}
    assert not any(changed.values()), f"reading changed a store: {changed}"
