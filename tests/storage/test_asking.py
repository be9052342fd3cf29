"""Questions of which nobody has to wait for the answer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store_core.errors import FailedError
from store_core.storage import objects
from store_core.storage import remote_call as asking
from store_core.storage.objects import RemotePart
from store_core.storage.remote_call import asked, call_again
from store_core.storage.remote_path import RemotePath


class RungError(BaseException):
    """Raised by a signal, as rmqctl does."""


def rung(*_: object) -> None:
    raise RungError


@contextmanager
def rings(seconds: float = 0.05) -> Iterator[None]:
    """A signal comes soon."""

    before = signal.signal(signal.SIGALRM, rung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def deaf(until: threading.Event) -> Callable[..., bool]:
    """Waits as a client does: without hearing signals, since it is not in the main thread. It gives up some day."""
    return lambda *_: until.wait(20)


def test_answers_and_errors_are_handed_on() -> None:
    assert asked(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        asked(divmod, 7, 0)


@pytest.mark.parametrize("is_main", [True, False])
def test_an_answer_has_its_time(is_main: bool) -> None:
    over = threading.Event()
    ask = partial(asked, deaf(over), within_seconds=0.1)
    with ThreadPoolExecutor(1) as pool, pytest.raises(FailedError, match="does not answer"):
        ask() if is_main else pool.submit(ask).result(20)
    over.set()
    assert asked(divmod, 7, 2, within_seconds=20) == (3, 1)


def test_another_thread_waits_for_little_once_a_signal_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_HURRY_SECONDS", 0.1)
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asked, divmod, 7, 2).result() == (3, 1)
        waiting = pool.submit(asked, deaf(over))
        with pytest.raises(RungError), rings():
            asked(deaf(over))
        with pytest.raises(FailedError, match="does not answer"):
            waiting.result(10)
    assert asked(divmod, 7, 2) == (3, 1)
    over.set()


def test_another_thread_hears_of_a_signal_behind_which_a_question_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who clears up asks first, and is answered at once."""
    monkeypatch.setattr(asking, "_HURRY_SECONDS", 0.1)
    over, begun = threading.Event(), threading.Event()

    def silent() -> bool:
        begun.set()
        return over.wait(20)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked, silent)
        assert begun.wait(20)
        asking.hurry()
        assert asked(divmod, 7, 2) == (3, 1)
        with pytest.raises(FailedError, match="does not answer"):
            waiting.result(10)
        over.set()


def test_a_signal_does_not_wait_for_the_answer() -> None:
    answered, over = threading.Event(), threading.Event()

    def call() -> None:
        over.wait(20)
        answered.set()

    with pytest.raises(RungError), rings():
        asked(call)
    assert not answered.is_set()
    over.set()
    assert answered.wait(20)


@pytest.mark.parametrize("moment", ["while it is asked", "between two questions", "as the asking begins"])
def test_who_clears_up_behind_a_signal_waits_for_little(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until an answer comes."""
    monkeypatch.setattr(asking, "_HURRY_SECONDS", 0.5)
    over = threading.Event()
    if moment == "between two questions":
        asking.hurry()
    elif moment == "as the asking begins":
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", rung)
            with pytest.raises(RungError):
                asked(deaf(over))
    else:
        with pytest.raises(RungError), rings():
            asked(deaf(over))
    with pytest.raises(FailedError, match="does not answer"):
        asked(deaf(over))
    assert asked(divmod, 7, 2) == (3, 1)
    assert asked(threading.Event().wait, 0.8) is False
    over.set()


def failing(times: int, attempts: list[int]) -> Callable[[], str]:
    """What fails so many times before it answers, and notes its attempts."""

    def call() -> str:
        attempts.append(len(attempts))
        if len(attempts) <= times:
            raise OSError("broken off")
        return "answer"

    return call


@pytest.mark.parametrize(
    ("times", "pauses", "count"), [(0, 2, 1), (1, 2, 2), (2, 2, 3), (9, 2, 3), (9, 0, 1), (9, 16, 10), (99, 16, 17)]
)
def test_what_may_pass_is_asked_for_once_more_behind_each_pause(times: int, pauses: int, count: int) -> None:
    attempts: list[int] = []
    if times < count:
        assert call_again(lambda _: (0.01,) * pauses, failing(times, attempts)) == "answer"
    else:
        with pytest.raises(OSError, match="broken off"):
            call_again(lambda _: (0.01,) * pauses, failing(times, attempts))
    assert len(attempts) == count


def test_a_trouble_between_others_is_waited_for_by_itself() -> None:
    """As where a client fails amid what has to be waited for."""
    troubles = ["held"] * 3 + ["broken off"] + ["held"] * 4
    pauses = {"held": (0.01,) * 8, "broken off": (0.02,)}

    def call() -> str:
        if troubles:
            raise OSError(troubles.pop())
        return "answer"

    assert call_again(lambda error: pauses[str(error)], call) == "answer"
    troubles = ["broken off", "held", "broken off"]
    with pytest.raises(OSError, match="broken off"):
        call_again(lambda error: pauses[str(error)], call)


def test_what_is_not_there_is_asked_for_once() -> None:
    """Whatever its name reads like."""
    attempts: list[int] = []

    def call() -> None:
        attempts.append(len(attempts))
        raise FileNotFoundError("no such object: connections/timeout")

    with pytest.raises(FileNotFoundError):
        call_again(lambda _: (0.01, 0.01), call)
    assert len(attempts) == 1


def test_what_took_its_client_long_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_PATIENCE_SECONDS", -1.0)
    attempts: list[int] = []
    with pytest.raises(OSError, match="broken off"):
        call_again(lambda _: (0.01, 0.01), failing(9, attempts))
    assert len(attempts) == 1


def test_behind_a_signal_nothing_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what fails nor what is not answered within the second; in the next question the signal is forgotten."""
    monkeypatch.setattr(asking, "_HURRY_SECONDS", 0.1)
    attempts: list[int] = []
    asking.hurry()
    with pytest.raises(OSError, match="broken off"):
        call_again(lambda _: (0.01, 0.01), failing(9, attempts))
    assert len(attempts) == 1
    over = threading.Event()
    asking.hurry()
    with pytest.raises(FailedError, match="does not answer"):
        call_again(lambda _: (0.01, 0.01), deaf(over))
    over.set()
    assert asked(divmod, 7, 2) == (3, 1)


@pytest.mark.parametrize("is_main", [True, False])
def test_a_signal_between_two_attempts(is_main: bool) -> None:
    attempts: list[int] = []
    again = partial(call_again, lambda _: (0.5, 0.5), failing(9, attempts))
    with ThreadPoolExecutor(1) as pool:
        if is_main:
            with pytest.raises(RungError), rings():
                again()
        else:
            waiting = pool.submit(again)
            with pytest.raises(RungError), rings():
                asked(deaf(threading.Event()))
            with pytest.raises(OSError, match="broken off"):
                waiting.result(10)
    assert len(attempts) == 1
    assert asked(divmod, 7, 2) == (3, 1)


@pytest.mark.parametrize("moment", ["write", "close"])
def test_an_interrupted_file_is_left_to_who_still_writes_it(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client's stream may be used by two threads at a time."""
    over = threading.Event()
    begun: list[str] = []

    class Client:
        def open_output_stream(self, _: str) -> Any:
            return self

        def write(self, _: object) -> None:
            self._do("write")

        def close(self) -> None:
            self._do("close")

        def delete_file(self, _: str) -> None:
            begun.append("delete")

        def _do(self, what: str) -> None:
            begun.append(what)
            if what == moment:
                deaf(over)()

    monkeypatch.setattr(objects, "_files", lambda _: Client())
    monkeypatch.setattr(objects, "_key", str)
    part = RemotePart(RemotePath("s3:", "bucket", "part"))

    def write() -> None:
        with part:
            part.write(b"bytes")

    with pytest.raises(RungError), rings(0.5):  # by then the client is asked, on a busy machine too
        write()
    part.discard()
    over.set()
    assert begun == ["write", *(["close"] if moment == "close" else []), "delete"]


def test_a_file_that_the_server_refuses_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[str] = []

    class Client:
        def open_output_stream(self, _: str) -> Any:
            return self

        def write(self, _: object) -> None:
            raise OSError("Forbidden")

        def close(self) -> None:
            begun.append("close")

        def delete_file(self, _: str) -> None:
            begun.append("delete")

    monkeypatch.setattr(objects, "_files", lambda _: Client())
    monkeypatch.setattr(objects, "_key", str)
    part = RemotePart(RemotePath("s3:", "bucket", "part"))
    with pytest.raises(Exception, match="access is denied"):
        part.write(b"bytes")
    part.discard()
    assert begun == ["close", "delete"]
