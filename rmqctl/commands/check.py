"""`rmqctl check`: everything in a store against everything else."""

from __future__ import annotations

from rmqctl.context import Context, exit_for_findings
from rmqctl.options import WALKERS, JobsOption
from rmqctl.output.document import Facts, Findings
from store_core.findings import FINDING_FIELDS


def check(
    ctx: Context,
    jobs: JobsOption = WALKERS,
) -> int:
    """Compare log, queues, index, checkpoint, progress and config files with each other.

    Example: rmqctl check -s /data/rocketmq/store
    """
    from store_core.check.store import check_store
    from store_core.storage.live import is_live

    with ctx.open_store() as store, ctx.progress("check", store.log.size_bytes) as bar:
        report = check_store(store, jobs=jobs, live=is_live(store.root).live, on_progress=bar)
        name = str(store.root)
    ctx.output.emit(
        {"store": name, "findings": report.findings, "summary": report.summary},
        rows="findings",
        fields=FINDING_FIELDS,
        blocks=[Facts({"store": name, **report.summary}, "Check"), Findings(report.findings)],
    )
    return exit_for_findings(report.findings)
