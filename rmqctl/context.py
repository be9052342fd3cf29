"""Give a command its context: the global options, the stores it works on, and the ways to report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rmqctl import exit_codes
from rmqctl.options import DEFAULT_STORE, GlobalOptions, StoreName
from rmqctl.output.cells import escape_controls
from rmqctl.output.formats import Output
from rmqctl.output.progress_bar import Course, OnProgress, progress
from rmqctl.output.streams import say
from store_core.errors import UsageError
from store_core.findings import Finding
from store_core.storage.remote_path import absolute_path, is_remote, on_disk_only

if TYPE_CHECKING:
    from store_core.export.naming import Called
    from store_core.storage.settings import Settings
    from store_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """The first argument of every command."""

    command: str
    options: GlobalOptions
    output: Output
    _courses: list[Course] = field(default_factory=list, repr=False, compare=False)  # at most one: the work under way
    _noted: set[str] = field(default_factory=set, repr=False, compare=False)

    # The store

    @property
    def stores(self) -> tuple[StoreName, ...]:
        """The stores that -s or the environment names; empty if neither names any."""
        return self.options.stores

    @property
    def store(self) -> StoreName | None:
        """The only store; None if only the configuration or the default names it. Raises UsageError for several."""
        if len(self.stores) > 1:
            raise UsageError(f"{self.command} works on one store", to_do="name one store with -s")
        return self.stores[0] if self.stores else None

    def settings(self, store: StoreName | None = None) -> Settings:
        """Return sizes and paths from ``-c``, ``--commitlog`` and the root of ``store`` (default: the only store)."""
        from store_core.storage.settings import load_settings

        store = store or self.store
        options = self.options
        settings = load_settings(
            options.config,
            store.path if store else None,
            commitlog=options.commitlog,
            broker_version=options.broker_version,
        )
        if options.config is not None and not settings.names_a_broker:
            self._note_once(f"{options.config} holds no setting of a broker")
        return settings

    def store_root(self) -> Path:
        """Return the only store's root folder, absolute, without checking that it exists. Raises UsageError for one in an object store."""
        if (store := self.store) is not None:
            self.refuse_remote()
            return absolute_path(store.path)
        return self.settings().root if self.options.config else Path(DEFAULT_STORE).expanduser()

    def refuse_remote(self) -> None:
        """Raise UsageError if a store in an object store is named: it cannot be changed, nor followed as it grows."""
        for store in self.stores:
            if is_remote(store.path):
                raise on_disk_only(store.path)

    def open_store(self) -> Store:
        """Return the only store, open for reading; a context manager. Warns if it is half changed. Raises NotAStoreError."""
        store = self._opened()
        self._report_change(store.root)
        return store

    def refuse_no_store(self) -> None:
        """Raise NotAStoreError if there is no store."""
        self._opened().close()

    def _opened(self) -> Store:
        from store_core.storage.store import Store

        settings = self.settings()
        return Store.open(settings.root, settings)

    @contextmanager
    def open_stores(self, *, joined: bool = False) -> Iterator[list[tuple[str, Store]]]:
        """Yield all stores named with ``-s``, open, each with its name: its NAME=, its broker's, or its folder's.

        ``joined``: give copies of one broker's log as one store, with a note.
        """
        from store_core.export.naming import Called, distinct_names
        from store_core.storage.store import Store

        with ExitStack() as opened:
            named = [(store.name if store else None, self.settings(store)) for store in self.stores or (None,)]
            named = self._without_repeats(named) if joined else named
            stores = [opened.enter_context(Store.open(settings.root, settings)) for _, settings in named]
            for store in stores:
                self._report_change(store.root)
            called = [Called.of(name, settings) for name, settings in named]
            if joined and len(stores) > 1:
                stores, called = self._joined(stores, called, opened)
            yield list(zip(distinct_names(called), stores, strict=True))

    def _report_change(self, root: Path) -> None:
        from store_core.storage.half_applied import half_changed

        if (warning := half_changed(root)) is not None:
            self.warn(warning)

    def _without_repeats(self, named: Sequence[tuple[str | None, Settings]]) -> list[tuple[str | None, Settings]]:
        """Return the stores without repeated paths, with a note for each; the first name given for a path counts."""
        once: dict[Path, tuple[str | None, Settings]] = {}
        for name, settings in named:
            if settings.root in once:
                self.note(f"{settings.root} is named twice, and is taken once")
                name = once[settings.root][0] or name
            once[settings.root] = name, settings
        return list(once.values())

    def _joined(self, stores: list[Store], called: list[Called], opened: ExitStack) -> tuple[list[Store], list[Called]]:
        from store_core.export.naming import Called
        from store_core.read.log_copies import taken_once
        from store_core.storage.store import Store

        taken, warnings = taken_once(stores, [name.given for name in called])
        for text in warnings:
            self.warn(text)
        by_root = {store.root: store for store in stores}
        joint: list[Store] = []
        for log in taken:
            if log.settings.copies:
                self.note(f"copies of one log, each record is taken once: {' and '.join(map(str, log.roots))}")
                joint.append(opened.enter_context(Store.open(log.settings.root, log.settings)))
            else:
                joint.append(by_root[log.settings.root])
        return joint, [Called.together([called[number] for number in log.numbers]) for log in taken]

    # Messages to the user

    def note(self, text: str) -> None:
        """Print a remark on stderr; nothing with -q."""
        if not self.options.quiet:
            self._say(f"note: {text}")

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def detail(self, text: str) -> None:
        """Print a remark on stderr, only with -v."""
        if self.options.verbose and not self.options.quiet:
            self._say(text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr; nothing with -q."""
        if not self.options.quiet:
            self._say(f"warning: {text}")

    def complain(self, text: str) -> None:
        """Print an error of the store on stderr, with -q too."""
        self._say(f"error: {text}")

    def _say(self, text: str) -> None:
        self.step_aside()
        say(text)

    def step_aside(self) -> None:
        """Take the progress bar off the terminal, so that other text can be written."""
        for course in self._courses:
            course.step_aside()

    @contextmanager
    def progress(
        self, label: str, total_bytes: int, *, ahead_bytes: int = 0, known: bool = False
    ) -> Iterator[OnProgress]:
        """Show progress: ``with ctx.progress("verify", size) as bar``, then ``bar(done_bytes)`` with the bytes done so far.

        Nested calls share one bar. ``ahead_bytes``: size of the nested work to come, whose call passes ``known``.
        """
        if self._courses:
            self._courses[0].begin(total_bytes, known=known)
            yield self._courses[0]
            return
        options = self.options
        wanted = not (options.quiet or options.no_progress)
        shown = progress(
            label, total_bytes + ahead_bytes, wanted=wanted, verbose=options.verbose, color=not options.no_color
        )
        with shown as (on_progress, step_aside), self.output.behind(step_aside):
            self._courses.append(Course(on_progress, step_aside, ahead_bytes))
            try:
                yield self._courses[0]
            finally:
                self._courses.clear()


def confirm(ctx: Context, text: str, yes: bool) -> bool:
    """Return True if ``--yes`` is given or the user agrees. Raises UsageError without a terminal to ask on."""
    if yes:
        return True
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{ctx.command} needs a confirmation", to_do="give --yes")
    ctx.step_aside()
    print(f"{escape_controls(text)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def exit_for_findings(findings: Iterable[Finding]) -> int:
    """Return 3 if any finding is a warning or an error, else 0."""
    return exit_codes.FINDINGS if any(f.severity != "info" for f in findings) else exit_codes.OK
