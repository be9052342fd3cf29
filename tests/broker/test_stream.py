"""A stream, and exports one behind the other, read a store while a real broker writes to it: every message once, whoever is
stopped in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import stores
from tests.broker.running import RunningBroker
from tests.export.exports import export_one, table_of
from tests.export.sources import source_table

pytest.importorskip("pyspark")

from tests.export.sessions import Query, spark_session

TOPICS = ("Calm_bills", "Calm_steps", "Calm_orders", "Calm_audit")


@pytest.mark.spark
def test_a_stream_follows_a_broker_that_is_killed_in_the_end(
    store_copy: Callable[[str], Path], running_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    root = store_copy("load-533")
    segments = len(list((root / "commitlog").iterdir()))
    broker = running_broker("5.3.3", root, stores.properties_text("load-533"))
    sent: list[dict[str, Any]] = []
    sender = threading.Thread(target=lambda: sent.extend(broker.send(*TOPICS * 12) for _ in range(3)))
    with spark_session() as spark:
        query = Query(spark, root, tmp_path, columns="phy_offset,crc,offset_msg_id")
        sender.start()
        for _ in range(2):
            running = query.start(processingTime="0 seconds")
            deadline = time.monotonic() + 90
            while not any(batch["numInputRows"] for batch in running.recentProgress):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            running.stop()
        sender.join()
        broker.kill()
        query.finish()
        rows = query.rows()
    assert len(list((root / "commitlog").iterdir())) > segments, "the log has not gone on to another file"
    assert rows == [
        tuple(row.values()) for row in source_table(root, columns="phy_offset,crc,offset_msg_id").to_pylist()
    ]
    ids = [row[2] for row in rows]
    assert len(ids) == len(set(ids)) >= len(stores.truth("load-533")["messages"]) + 3 * 12 * len(sent[0])
    assert {answer["offsetMsgId"] for answers in sent for answer in answers.values()} <= set(ids)


def test_exports_beside_a_broker_that_is_killed_in_the_end(
    store_copy: Callable[[str], Path], running_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    root, out = store_copy("load-533"), tmp_path / "out"
    broker = running_broker("5.3.3", root, stores.properties_text("load-533"))
    sent: list[dict[str, Any]] = []
    sender = threading.Thread(target=lambda: sent.extend(broker.send(*TOPICS * 12) for _ in range(3)))
    sender.start()
    rounds = 0
    while sender.is_alive():
        report = export_one(root, out, incremental=True)
        assert report.findings == []
        rounds += bool(report.rows)
    assert rounds > 3
    broker.kill()
    export_one(root, out, incremental=True)
    assert table_of(out).drop_columns("store").equals(source_table(root).drop_columns("store"))
    assert table_of(out, "quarantine").num_rows == 0
    ids = table_of(out)["offset_msg_id"].to_pylist()
    assert len(ids) == len(set(ids)) >= len(stores.truth("load-533")["messages"]) + 3 * 12 * len(sent[0])
    assert {answer["offsetMsgId"] for answers in sent for answer in answers.values()} <= set(ids)
