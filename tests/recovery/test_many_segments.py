"""A start without queues over many segments costs a turn a queue, not one a queue and segment: counted, not timed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_core.broker.queue_recovery import QueueState
from store_core.broker.versions import Version, behaviour_of, groups_of
from store_core.layout import checkpoint, paths
from store_core.recovery.prediction import predict as predict_module
from store_core.recovery.prediction import start_loss
from store_core.recovery.prediction.predict import outcome_of, predict
from store_core.recovery.prediction.queue_coverage import Span
from store_core.storage.store import Store
from tests.conftest import StoreCopy
from tests.surgery import Exit

Counted = Callable[[Any, str], Counter[Any]]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """``counted(owner, name)``: calls of a function from now on, by their first argument."""

    def count(owner: Any, name: str) -> Counter[Any]:
        calls: Counter[Any] = Counter()
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls[arguments[0]] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)
        return calls

    return count


def _without_queues(store_copy: StoreCopy, name: str, exit: Exit) -> Path:
    root = store_copy(name, exit)
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    return root


def _write_late_checkpoint(root: Path) -> None:
    """Have the checkpoint tell that everything was flushed, up to the year 2109."""
    path = root / paths.CHECKPOINT
    fields = dict.fromkeys(("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms"), 1 << 42)
    data = path.read_bytes()
    told = checkpoint.CHECKPOINT.read(data) | fields
    path.write_bytes(checkpoint.CHECKPOINT.struct.pack(*told.values()) + data[checkpoint.CHECKPOINT.size_bytes :])


def test_a_queue_is_asked_once_for_all_lost_segments(store_copy: StoreCopy, counted: Counted) -> None:
    """The scan begins with the newest segment: all queues have lost messages in those before."""
    root = _without_queues(store_copy, "load-533", "crash")
    _write_late_checkpoint(root)
    asked, read = counted(Span, "places"), counted(start_loss, "read_message")
    with Store.open(root) as store:
        outcome, _ = outcome_of(store, behaviour_of(Version.parse("5.3.3")))
        assert len(store.log.segments) > 3
        assert outcome.first_file_scanned == store.log.segments[-1].name
        assert outcome.lost_messages > 0
        assert asked
        assert set(asked.values()) == {1}
        assert read.total() <= sum(len(spans) for spans in outcome.queues.values())


def test_starts_that_append_alike_list_their_losses_once(store_copy: StoreCopy, counted: Counted) -> None:
    listed = counted(predict_module, "losses")
    with Store.open(_without_queues(store_copy, "load-533", "crash")) as store:
        prediction = predict(store)
        assert len(groups_of(prediction.evidence.possible)) > 1
        assert prediction.outcome.lost_messages > 0
        assert listed.total() == 1 + len(prediction.others)


def test_catching_up_gives_a_queue_the_rows_of_all_segments_at_once(store_copy: StoreCopy, counted: Counted) -> None:
    """4.x dispatches from the queues' end on only when it starts."""
    put = counted(QueueState, "put")
    with Store.open(_without_queues(store_copy, "load-497", "clean")) as store:
        outcome_of(store, behaviour_of(Version.parse("4.9.7")))
        assert len(store.log.segments) > 3
        assert set(put.values()) == {1}
