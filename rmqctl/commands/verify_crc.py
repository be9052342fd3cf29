"""`rmqctl verify-crc`: every record of the log against its checksum."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.context import Context, exit_for_findings
from rmqctl.options import read_size, refuse_backwards
from rmqctl.running import ConfOption, MasterOption, PackEnvOption, SparkChoice, SparkOption
from store_core.errors import UsageError
from store_core.extras import assert_installed

if TYPE_CHECKING:
    from rmqctl.output.document import Block
    from store_core.check.verify import VerifyReport
    from store_core.scan.pieces import Piece
    from store_core.storage.store import Store

Stores = Sequence[tuple[str, "Store"]]
_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(%?)")


@dataclass(frozen=True)
class _Wanted:
    """The part of each log to look at, and the time for it."""

    from_phy_offset: int | None
    to_phy_offset: int | None
    share: float | None
    max_seconds: float | None
    resume: bool
    state: Path | None

    @property
    def keeps_state(self) -> bool:
        return self.max_seconds is not None or self.resume


_EVERYTHING = _Wanted(None, None, None, None, resume=False, state=None)


def verify_crc(
    ctx: Context,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Segments to verify side by side.")] = min(
        2, os.cpu_count() or 1
    ),
    from_: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="Only records that start at or after it.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="Only records that start before it.")
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="SHARE", help="Only random windows: 5%, or 0.05.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="S", min=0, help="Stop after that time and say where.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where --max-seconds stopped the last time.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="FILE", help="Where --resume finds what is left; else in $XDG_STATE_HOME/rmqctl."
        ),
    ] = None,
    spark: SparkOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    pack_env: PackEnvOption = False,
    split_size: Annotated[
        int | None,
        typer.Option(
            "--split-size", metavar="SIZE", callback=read_size, help="Bytes of the log a Spark task; default 256 MiB."
        ),
    ] = None,
) -> int:
    """Check every record of the log against its checksum, going on after damage.

    With --spark, a PySpark job does it, split by split, for stores larger than a machine; the report is the same.

    Example: rmqctl verify-crc -s /data/rocketmq/store -o json
    """
    refuse_backwards(from_, to, ("--from", "--to"))
    wanted = _Wanted(from_, to, None if sample is None else _share(sample), max_seconds, resume, state)
    choice = SparkChoice(spark, master, conf, pack_env)
    _refuse_contradictions(ctx, wanted, choice, split_size)
    if spark:
        assert_installed("pyspark", "--spark")
    documents: list[dict[str, Any]] = []
    seconds, size_bytes = 0.0, 0
    with ctx.open_stores() as stores:
        verified = _on_spark(ctx, stores, choice, split_size) if spark else _here(ctx, stores, wanted, jobs)
        for report, document in verified:
            seconds, size_bytes = seconds + report.seconds, size_bytes + report.size_bytes
            documents.append(document)
    rate = round(size_bytes / seconds) if seconds > 0 else 0
    ctx.output.emit(
        {"stores": documents, "seconds": round(seconds, 3), "bytes_per_second": rate},
        rows=[{"store": d["store"], **segment} for d in documents for segment in d["segments"]],
        blocks=lambda: [block for document in documents for block in _blocks(document)],
    )
    return exit_for_findings(finding for document in documents for finding in document["findings"])


def _here(ctx: Context, stores: Stores, wanted: _Wanted, jobs: int) -> Iterator[tuple[VerifyReport, dict[str, Any]]]:
    """Reports and documents of the stores, one after the other, in this process."""
    started = time.monotonic()
    for name, store in stores:
        limit = wanted.max_seconds
        time_left = None if limit is None else max(0.0, limit - (time.monotonic() - started))
        report, told = _verify(ctx, name, store, wanted, jobs, time_left)
        yield report, {"store": name, **told}


def _on_spark(
    ctx: Context, stores: Stores, choice: SparkChoice, split_size: int | None
) -> Iterator[tuple[VerifyReport, dict[str, Any]]]:
    """Verify whole logs as ``_here`` does, all stores in one job."""
    from store_core.export.splits.plan import SPLIT_SIZE_BYTES
    from store_core.export.statistics import verify_stores

    size_bytes = SPLIT_SIZE_BYTES if split_size is None else split_size
    total = sum(store.log.size_bytes for _, store in stores)
    with choice.runner(ctx, 1) as runner, ctx.progress("verify", total) as bar:
        reports = verify_stores(stores, runner, split_size_bytes=size_bytes, on_progress=bar)
    for (name, _), report in zip(stores, reports, strict=True):
        yield report, {"store": name, **_told(report)}


def _refuse_contradictions(ctx: Context, wanted: _Wanted, choice: SparkChoice, split_size: int | None) -> None:
    choice.refuse_without_spark()
    if split_size is not None and not choice.spark:
        raise UsageError("--split-size is for --spark", to_do="give --spark too, or leave it out")
    if choice.spark and wanted != _EVERYTHING:
        raise UsageError("--spark verifies whole logs", to_do="leave out what names a part of them")
    has_range = wanted.from_phy_offset is not None or wanted.to_phy_offset is not None
    if sum((has_range, wanted.share is not None, wanted.resume)) > 1:
        raise UsageError("--from/--to, --sample and --resume exclude each other", to_do="give one of them")
    if wanted.state is not None and not wanted.keeps_state:
        raise UsageError("--state needs --max-seconds or --resume", to_do="give one of them")
    if (has_range or wanted.state is not None) and len(ctx.stores) > 1:
        raise UsageError("offsets and --state are about one store", to_do="name one store with -s")


def _share(text: str) -> float:
    share = _SHARE.fullmatch(text.strip())
    if not share:
        raise UsageError(f"{text!r} is no share", to_do="give a percentage such as 5%")
    return float(share[1]) / (100 if share[2] else 1)


def _verify(
    ctx: Context, name: str, store: Store, wanted: _Wanted, jobs: int, max_seconds: float | None
) -> tuple[VerifyReport, dict[str, Any]]:
    """A store's report, and what is told of it."""
    from store_core.check.verify import verify_log

    pieces = _pieces(ctx, store, wanted)
    asked_bytes = sum(
        min(piece.to_phy_offset, piece.segment.end_phy_offset) - piece.from_phy_offset for piece in pieces
    )
    with ctx.progress(f"verify {name}", asked_bytes) as bar:
        report = verify_log(
            store, pieces, jobs=jobs, live=partial(_is_live, store), max_seconds=max_seconds, on_progress=bar
        )
    if wanted.keeps_state:
        from store_core.check.verify_resume import save_left

        save_left(_state_file(store, wanted), store, report.left)
    if report.left:
        ctx.note(f"{name}: stopped at {report.next_phy_offset}; --resume goes on there")
    sample = None
    if wanted.share is not None:
        sample = {
            "share": wanted.share,
            "windows": len(pieces),
            "bytes": report.size_bytes,
            "log_bytes": store.log.size_bytes,
        }
    return report, _told(report, sample)


def _told(report: VerifyReport, sample: dict[str, Any] | None = None) -> dict[str, Any]:
    """A store's document, but for its name."""
    return {
        "bytes": report.size_bytes,
        "records": report.records,
        "complete": not report.left,
        "next_phy_offset": report.next_phy_offset,
        **({} if sample is None else {"sample": sample}),
        "segments": [segment.as_json() for segment in report.segments],
        "findings": report.findings,
    }


def _is_live(store: Store) -> bool:
    from store_core.storage.live import is_live

    return is_live(store.root).live


def _state_file(store: Store, wanted: _Wanted) -> Path:
    from store_core.check.verify_resume import default_state_file

    return wanted.state or default_state_file(store)


def _pieces(ctx: Context, store: Store, wanted: _Wanted) -> list[Piece]:
    from store_core.check.verify import log_range, random_pieces, whole_log

    if wanted.resume:
        from store_core.check.verify_resume import load_left

        left = load_left(_state_file(store, wanted), store)
        if left is not None:
            return left
        ctx.note("nothing is left of an earlier verification: starting at the log's start")
    if wanted.share is not None:
        return random_pieces(store, wanted.share)
    if wanted.from_phy_offset is not None or wanted.to_phy_offset is not None:
        return log_range(store, wanted.from_phy_offset, wanted.to_phy_offset)
    return whole_log(store)


def _blocks(document: dict[str, Any]) -> list[Block]:
    from rmqctl.output.document import Facts, Findings, Table

    title = f"{document['store']}: {document['records']} records"
    table = Table(document["segments"], ["name", "records", "bytes", "ok", "bad"], title)
    sample = document.get("sample")
    facts = []
    if sample is not None:
        shown = {"sampled bytes": sample["bytes"], "of": sample["log_bytes"]}
        facts.append(Facts(shown, "Not complete: random windows of the log"))
    if not document["complete"]:
        at = document["next_phy_offset"]
        facts.append(Facts({"verified": "a part of the log", "next_phy_offset": at}, "Not complete: --resume goes on"))
    return [table, *facts, Findings(document["findings"])]
