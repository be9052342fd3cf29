"""Choose what runs the tasks of `export` and `verify-crc`: processes on this machine, or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.options import read_size
from store_core.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.context import Context
    from store_core.export.runners.runner import Runner

SparkOption = Annotated[bool, typer.Option("--spark", help="Submit a PySpark job.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; default local[*], or spark-submit's.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="K=V", help="A setting for Spark; may be repeated.")
]
PackEnvOption = Annotated[
    bool, typer.Option("--pack-env", help="Send Spark's executors all they need but Python itself.")
]
SplitSizeOption = Annotated[
    int | None,
    typer.Option("--split-size", metavar="SIZE", callback=read_size, help="Bytes of the log a task; default 256 MiB."),
]


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """The options of a Spark job as given."""

    spark: bool
    master: str | None = None
    conf: list[str] | None = None
    pack_env: bool = False

    def refuse_without_spark(self) -> None:
        """Raise UsageError if options for a Spark job are given without --spark."""
        if not self.spark and (self.master is not None or self.conf or self.pack_env):
            raise UsageError(
                "--master, --conf and --pack-env are for --spark", to_do="give --spark too, or leave them out"
            )

    @contextmanager
    def runner(self, ctx: Context, jobs: int) -> Iterator[Runner]:
        """Yield a runner on Spark with --spark, else one of ``jobs`` processes."""
        self.refuse_without_spark()
        if not self.spark:
            from store_core.export.runners.local import LocalRunner, wait_for_workers

            try:
                yield LocalRunner(jobs)
            finally:
                wait_for_workers()
            return
        from store_core.export.runners.spark import SparkRunner

        settings = [_setting(text) for text in self.conf or ()]
        with SparkRunner(self.master, settings, pack_env=self.pack_env, note=ctx.note, log=ctx.detail) as runner:
            yield runner


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"--conf {text!r} is no setting", to_do="give KEY=VALUE")
    return key, value
