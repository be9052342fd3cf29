"""recover's own options as a shell gives them: words, documents and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_core.codec.hosts import host_bytes
from store_core.codec.record import encode_record
from store_core.recovery.recover import WALKS, recover
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, GoldenStore, StoreCopy
from tests.damage import Damageable
from tests.rmqctl.calls import call


@pytest.fixture
def sample(damaged: DamagedStore) -> Path:
    return damaged("load-533", "flip-body-mid", "crash")


def test_the_first_line_after_applying_says_it_all(sample: Path) -> None:
    kept = call("recover", "-s", sample, "-o", "json").json["kept_messages"]
    queued = [m for m in stores.truth("load-533")["messages"] if m["sysFlag"] & 0xC in (0, 8)]
    assert kept == len(queued) - 1
    told = call("recover", "-s", sample, "--apply").out.splitlines()
    assert told[0] == f"Done. Kept {kept}, lost 1."
    again = call("recover", "-s", sample, "--apply").out.splitlines()
    assert again[0] == f"Nothing had to be changed. Kept {kept + 1}, lost 0."  # with the tombstone


def test_advice_is_not_to_run_what_runs(sample: Path) -> None:
    (sample / "commitlog" / "stray.txt").write_text("?")
    found = {f["code"]: f["advice"] for f in call("recover", "-s", sample, "-o", "json").json["findings"]}
    assert (found["L001"], found["L010"]) == ("The plan mends it.", "The plan removes it.")
    assert (
        "recover"
        in {f["code"]: f for f in call("check", "-s", sample, "-o", "json").json["findings"]}["L001"]["advice"]
    )
    opened = call("recover", "-s", sample, "-o", "json", "--no-fill").json["findings"]
    assert {f["advice"] for f in opened if f["code"] == "L001"} == {"It is left as it is (--no-fill)."}


def test_other_releases_are_always_told(sample: Path, golden: GoldenStore) -> None:
    told = call("recover", "--predict", "-s", sample)
    document = call("recover", "--predict", "-s", sample, "-o", "json").json
    for other in document["other_predictions"]:
        assert f"{', '.join(other['versions'])}: loses {other['outcome']['lost_messages']}, ends at " in told.out


def test_a_sibling_gives_back_what_was_lost(
    sample: Path, golden: GoldenStore, read_only: Callable[[Path], Path]
) -> None:
    sibling = read_only(golden("load-533"))
    dry = call("recover", "-s", sample, "--sibling", sibling, "-o", "json")
    (taken,) = dry.json["siblings"]
    assert (dry.code, taken["sibling"], taken["records"], dry.json["lost"]) == (3, str(sibling), 1, [])
    (range_,) = taken["ranges"]
    assert dry.json["plan"]["steps"][0]["size_bytes"] == range_["size_bytes"] == taken["bytes"]
    told = call("recover", "-s", sample, "--sibling", sibling, "--apply")
    assert (told.code, told.out.splitlines()[0].split(", ")[1]) == (0, "lost 0.")
    assert "Taken from siblings" in told.out
    assert f"1 record, {taken['bytes']} bytes, taken from {sibling}" in told.out


def test_wrong_siblings_and_words_are_usage_errors(sample: Path, golden: GoldenStore, tmp_path: Path) -> None:
    for words, code in (
        (("--sibling", golden("clean-533")), 2),
        (("--sibling", sample), 2),
        (("--sibling", tmp_path / "none"), 10),
        (("--gaps", "hope"), 2),
        (("--no-fill", "--policy", "broker"), 2),
    ):
        result = call("recover", "-s", sample, *words)
        assert (result.code, result.err.count("\n"), result.out) == (code, 1, "")


@pytest.mark.leaves_damage("the hole is left open on purpose")
def test_an_open_hole_ends_with_3(sample: Path) -> None:
    done = call("recover", "-s", sample, "--no-fill", "--apply", "-o", "json")
    assert (done.code, done.json["applied"], {f["code"] for f in done.json["findings"] if f["severity"] == "error"}) == (
        3, True, {"L001"},
    )  # fmt: skip
    assert any("stays open" in note for note in done.json["plan_notes"])


def test_skipping_tells_its_price(sample: Path) -> None:
    done = call("recover", "-s", sample, "--gaps", "skip", "--apply")
    assert done.code == 0
    assert "1 lost message gets a dead entry, which consumers pass over; under brokers 5.x" in " ".join(
        done.out.split()
    )


def test_a_readable_neighbour_is_named_and_given_up_with_yes_only(damageable: Callable[..., Damageable]) -> None:
    """A hole of 60 bytes has no room for a record: its smaller neighbour goes with it, named."""
    store = damageable("load-533", "crash")
    messages = store.truth["messages"]
    number = next(n for n, m in enumerate(messages) if n > 900 and m["bodyLength"] and m["sysFlag"] == 0)
    message, behind = store.message(number), store.message(number + 1)

    def filler(size: int) -> bytes:
        """A record over all but 60 bytes of the message's place, so that a hole of 60 is left."""

        def made(body: int) -> bytes:
            return encode_record(
                topic=message["topic"], body=b"x" * body, properties={}, queue_id=message["queueId"],
                queue_offset=message["queueOffset"], phy_offset=message["phyOffset"], born_timestamp_ms=1,
                born_host=host_bytes("127.0.0.1:1"), store_timestamp_ms=message["storeTimestamp"],
                store_host=host_bytes("127.0.0.1:1"),
            )  # fmt: skip

        return made(size - len(made(0)))

    store.write(message["phyOffset"], filler(message["storeSize"] - 60) + b"\1" * 60)
    candidates = {(m["topic"], m["queueId"], m["queueOffset"]) for m in (message, behind)}
    dry = call("recover", "-s", store.root, "-o", "json").json
    (run,) = dry["given_up"]
    assert (run["topic"], run["queue_id"], run["first_queue_offset"]) in candidates
    refused = call("recover", "-s", store.root, "--apply")
    assert (refused.code, "needs a confirmation" in refused.err) == (2, True)
    done = call("recover", "-s", store.root, "--apply", "--yes", "-o", "json")
    assert (done.code, done.json["given_up"]) == (0, [run])


def test_what_is_known_of_a_lost_record(sample: Path, golden: GoldenStore) -> None:
    """Its head tells keys and times, its queue entry the tags code, the index its keys' hashes."""
    (known,) = call("recover", "-s", sample, "-o", "json").json["lost_records"]
    message = next(m for m in stores.truth("load-533")["messages"] if m["phyOffset"] == known["phy_offset"])
    assert (known["topic"], known["queue_id"], known["queue_offset"], known["size_bytes"]) == (
        message["topic"], message["queueId"], message["queueOffset"], message["storeSize"],
    )  # fmt: skip
    properties = message["properties"]
    assert (known["unique_key"], known["keys"]) == (properties["UNIQ_KEY"], properties["KEYS"].split())
    assert (known["store_timestamp_ms"], known["tags_code"]) == (message["storeTimestamp"], message["tagsCode"])
    assert len(known["index"]) == 1 + len(known["keys"])
    assert {abs(entry["store_timestamp_ms"] - message["storeTimestamp"]) < 2000 for entry in known["index"]} == {True}
    store = Damageable(sample, stores.truth("load-533"))
    store.zero(message["phyOffset"], message["storeSize"])
    (wiped,) = call("recover", "-s", sample, "-o", "json").json["lost_records"]
    assert (wiped["unique_key"], wiped["tags_code"], wiped["index"]) == (None, known["tags_code"], known["index"])


def test_progress_counts_every_walk(sample: Path) -> None:
    told: list[int] = []
    with Store.open(sample) as store:
        recover(store, on_progress=told.append)
        whole = store.log.size_bytes
    assert told == sorted(told)
    assert (WALKS - 1) * whole < told[-1] <= WALKS * whole


def test_a_wrong_queue_id_and_a_damaged_body_in_one_record(store_copy: StoreCopy) -> None:
    root = store_copy("clean-430")
    with (root / "commitlog/00000000000000000000").open("r+b") as log:
        for at, byte in ((37159, 0x10), (37440, 0x75)):
            log.seek(at)
            log.write(bytes([byte]))
    result = call("recover", "-s", root, "-o", "json")
    assert result.code == 3
    assert [(run["topic"], run["queue_id"], run["messages"]) for run in result.json["lost"]] == [("Barn_bills", 0, 1)]
    assert call("recover", "-s", root, "--apply", "--yes").code in (0, 3)
    findings = call("check", "-s", root, "-o", "json").json["findings"]
    assert [found["code"] for found in findings] == ["L016"]  # the tombstone
