"""Reads from object stores that fail: single faults do no harm, and lasting ones end with advice.

The faulty server is in this process, and rmqctl in another: Google's client may hold the interpreter's lock while it waits.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Final

import pytest

from tests.conftest import GoldenStore
from tests.faulty_proxy import Fault, Faulty, in_front_of
from tests.object_stores import ObjectStore
from tests.rmqctl.calls import ROOT, Result, call, environment

STORE: Final = "clean-533"
_AGAIN: Final = "run the command again"
_CHECK: Final = f"check the endpoint, and {_AGAIN}"
_CHECK_ALL: Final = f"check the network and the endpoint, and {_AGAIN}"
_LATER: Final = f"{_AGAIN} later"
_SILENT: Final = "the object store does not answer"
_GARBLED: Final = f"{_SILENT} as it should"
_BUSY: Final = "the object store is busy, or fails"
_BROKEN_OFF: Final = "Connection closed before getting full response or response is less than expected"


def is_listing(method: str, path: str) -> bool:
    return method == "GET" and ("list" in path or "/o?" in path)


def is_look(method: str, path: str) -> bool:
    """At the log's files, which opening them begins with; Google's is a GET."""
    return "commitlog" in path and not is_listing(method, path) and not is_block(method, path)


def is_block(method: str, path: str) -> bool:
    is_google = path.startswith("/storage/")
    return (
        method == "GET"
        and "commitlog" in path
        and not is_listing(method, path)
        and (not is_google or "alt=media" in path)
    )


def is_any(*_: str) -> bool:
    return True


def got(store: ObjectStore, address: str, faulty: Faulty) -> Result:
    """What ``get`` says of the first message, through the faults."""
    with in_front_of(store, faulty) as behind:
        return call("get", "0", "-s", address, "-o", "json", **behind.environment)


def at_turn(turn: int, fault: Fault | None, is_meant: Callable[[str, str], bool]) -> tuple[Faulty, list[str]]:
    """A fault on one request of those that are meant, and all of those."""
    seen: list[str] = []

    def fault_of(method: str, path: str) -> Fault | None:
        if not is_meant(method, path):
            return None
        seen.append(f"{method} {path}")
        return fault if len(seen) == turn else None

    return Faulty(fault_of), seen


@pytest.mark.product(3)
@pytest.mark.parametrize(
    ("any_object_store", "fault", "is_meant"),
    [
        ("s3", Fault.CUT, is_any),
        ("s3", Fault.SHORT, is_listing),  # short blocks go unnoticed
        ("gs", Fault.CUT, is_any),
        ("gs", Fault.SHORT, is_any),
        ("abfss", Fault.CUT, is_any),
        ("abfss", Fault.SHORT, is_block),  # listings: see docs/export_rules.md
        ("abfss", Fault.NOT_FOUND, is_listing),
    ],
    indirect=["any_object_store"],
)
def test_one_fault_does_no_harm(
    any_object_store: ObjectStore, fault: Fault, is_meant: Callable[[str, str], bool], golden: GoldenStore
) -> None:
    address = any_object_store.put(golden(STORE))
    faulty, seen = at_turn(0, None, is_meant)
    right = got(any_object_store, address, faulty)
    assert right.code == 0, right.err
    assert seen
    for turn in range(1, len(seen) + 1):
        faulty, _ = at_turn(turn, fault, is_meant)
        done = got(any_object_store, address, faulty)
        assert (done.code, done.out, done.err) == (0, right.out, right.err), (turn, seen[turn - 1])
        assert len(faulty.met) == 1


@pytest.mark.parametrize(
    ("any_object_store", "fault", "is_meant", "what", "to_do"),
    [
        ("s3", Fault.REFUSED, is_listing, f"{_BUSY} (Please reduce your request rate.)", _LATER),
        ("s3", Fault.SHORT, is_listing, f"{_GARBLED} (XML_ERROR_PARSING_ELEMENT)", _CHECK),
        ("gs", Fault.SHORT, is_listing, f"{_GARBLED} (expected payload to be a JSON object)", _CHECK),
        ("gs", Fault.SHORT, is_look, f"{_GARBLED} (json input is not an object)", _CHECK),
        ("gs", Fault.NOT_FOUND, is_block, _GARBLED, _CHECK),  # a file that is closed from the beginning
        ("abfss", Fault.CUT, is_listing, f"{_SILENT} ({_BROKEN_OFF})", _CHECK_ALL),
        ("abfss", Fault.REFUSED, is_look, f"{_BUSY} (503 Service Unavailable)", _LATER),
        ("abfss", Fault.NOT_FOUND, is_listing, f"{_GARBLED} (404 Not Found)", _CHECK),
        ("abfss", Fault.NOT_FOUND, is_block, f"{_GARBLED} (404 Not Found)", _CHECK),
        ("abfss", Fault.SHORT, is_block, f"{_GARBLED} (Error when reading body stream)", _CHECK),
    ],
    indirect=["any_object_store"],
)
def test_a_lasting_fault_ends_with_advice(
    any_object_store: ObjectStore,
    fault: Fault,
    is_meant: Callable[[str, str], bool],
    what: str,
    to_do: str,
    golden: GoldenStore,
) -> None:
    address = any_object_store.put(golden(STORE))
    faulty = Faulty(lambda method, path: fault if is_meant(method, path) else None)
    done = got(any_object_store, address, faulty)
    assert (done.code, done.err.partition(f" ({any_object_store.kind}://")[0]) == (1, f"error: {what}")
    assert done.err.endswith(f"): {to_do}\n")
    assert len(faulty.met) >= 3


def test_what_does_not_pass_is_asked_for_once(any_object_store: ObjectStore, golden: GoldenStore) -> None:
    address = any_object_store.put(golden(STORE))
    refusing = Faulty(lambda method, path: Fault.FORBIDDEN if is_listing(method, path) else None)
    refused = got(any_object_store, address, refusing)
    assert (refused.code, len(refusing.met)) == (1, 1)
    passing, seen = at_turn(0, None, is_listing)
    missing = got(any_object_store, address.replace("//stores", "//no-such-bucket"), passing)
    assert (missing.code, bool(seen), len(seen)) == (10, True, len(set(seen)))


_IMPATIENT: Final = """
import sys
from store_core.storage import object_store
object_store._PATIENCE_SECONDS, object_store._SLOWEST_BYTES_PER_SECOND = 1, 10**9
from rmqctl.app import main
sys.exit(main())
"""


def test_who_gives_up_on_a_read_ends(golden: GoldenStore, object_store: ObjectStore) -> None:
    """Although the client, which nobody can stop, waits on."""
    faulty = Faulty(lambda method, path: Fault.SILENT if method == "GET" and "/commitlog/0" in path else None)
    address = object_store.put(golden("load-533"))
    with in_front_of(object_store, faulty) as behind:
        done = subprocess.run(
            [sys.executable, "-c", _IMPATIENT, "get", "0", "-s", address],
            cwd=ROOT,
            env=environment(**behind.environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert faulty.met
    assert done.returncode == 1
    assert "the server does not answer" in done.stderr
