"""Plan the splits that executors read, from directory listings and the end of a live log."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from store_core.errors import UsageError
from store_core.export.naming import Called, distinct_names
from store_core.export.source.data_loss import Named, data_lost, refuse_gaps
from store_core.export.source.offsets import Last, Offset, Offsets, Span, end_of, last_of, offset_after, spans_between
from store_core.export.source.options import EARLIEST, SourceOptions, Start, StoreOfSource
from store_core.export.source.reading import Reading
from store_core.export.source.stream_progress import Follower
from store_core.export.source.walk import SourceSplit, plan
from store_core.export.splits.plan import SPLIT_SIZE_BYTES
from store_core.export.splits.tail import landmarks_of
from store_core.kernel.codes import FrameCode, FrameKind
from store_core.read.log import has_message_after, start_for_time
from store_core.read.log_copies import differences, find_copies, taken_once
from store_core.read.log_files import refuse_partial_log, unread_log
from store_core.scan.log import ScanOptions, scan_segment
from store_core.storage.half_applied import half_changed
from store_core.storage.live import is_live
from store_core.storage.remote_path import is_remote
from store_core.storage.store import Store

_WHOLE: Final = 1 << 62
_QUIET_MS: Final = 100  # the newest record must stay the same for this time


def batch_readings(options: SourceOptions) -> list[Reading]:
    """Return all requested splits, store by store in log order. Raises StoreError."""
    for name in options.for_streams:
        to_do = 'give option("fromOffset", OFFSET)' if name == "startingOffset" else "leave it out"
        raise UsageError(f"{name} is for streams", to_do=to_do)
    report_changes(options)
    return [reading for store in _named_logs(options) for reading in _readings_of(store, options)]


def report_changes(options: SourceOptions) -> None:
    """Warn of each store with an unfinished change by rmqctl."""
    for store in options.stores:
        if (warning := half_changed(store.settings.root)) is not None:
            warnings.warn(f"{store.settings.root}: {warning}", stacklevel=2)


def _named_logs(options: SourceOptions) -> list[Named]:
    """Return the stores with their names; copies of one log are one store."""
    if options.keep_copies or len(options.stores) == 1:
        return named_stores(options)
    with _opened(options.stores) as stores:
        called = _called(options)
        taken, texts = taken_once(stores, [name.given for name in called])
    for text in texts:
        warnings.warn(text, stacklevel=2)
    names = distinct_names([Called.together([called[number] for number in log.numbers]) for log in taken])
    return [Named(name, log.settings) for name, log in zip(names, taken, strict=True)]


def named_stores(options: SourceOptions) -> list[Named]:
    """Return each store with its name. Raises UsageError where two have the same."""
    names = distinct_names(_called(options))
    return [Named(name, store.settings) for name, store in zip(names, options.stores, strict=True)]


def _called(options: SourceOptions) -> list[Called]:
    return [Called.of(store.given, store.settings) for store in options.stores]


@contextmanager
def _opened(stores: Sequence[StoreOfSource]) -> Iterator[list[Store]]:
    with ExitStack() as opened:
        yield [opened.enter_context(Store.open(store.settings.root, store.settings)) for store in stores]


def refuse_copies(options: SourceOptions) -> None:
    """Raise UsageError for copies of one log: a stream follows each log by itself and would read each record twice."""
    if options.keep_copies or len(options.stores) == 1:
        return
    with _opened(options.stores) as stores:
        found = find_copies(stores, [store.given for store in options.stores])
    for group in found.groups:
        if len(group) > 1:
            several = list(dict.fromkeys(str(stores[number].root) for number in group))
            if len(several) == 1:
                raise UsageError("a store is named twice", path=several[0], to_do="name it once")
            roots = " and ".join(several)
            raise UsageError(
                f"{roots} are copies of one log, and a stream would read each record {len(group)} times",
                to_do='name one of them in option("path"), or take each for itself with option("keepCopies", "true")',
            )


def refuse_partial_logs(options: SourceOptions) -> None:
    """Raise FailedError where a folder of a log is missing: a stream would skip its segments for good."""
    with _opened(options.stores) as stores:
        for store in stores:
            refuse_partial_log(store)


def _readings_of(named: Named, options: SourceOptions) -> list[Reading]:
    wanted = options.wanted
    with Store.open(named.settings.root, named.settings) as store:
        log = store.log
        for found in unread_log(store):
            warnings.warn(f"{named.name}: {found.message} ({found.file})", stacklevel=2)
        for found in differences(store, 0, log.max_phy_offset):
            warnings.warn(f"{named.name}: {found.message} ({found.phy_offset})", stacklevel=2)
        start = max(wanted.from_phy_offset or 0, start_for_time(store, wanted.begin_ms), log.min_phy_offset)
        is_table_of_ranges = options.table == "quarantine"
        size = _split_size_bytes(store, options)
        live, stop = is_live(store.root).live, wanted.to_phy_offset
        if live and not is_table_of_ranges:  # else new records would be in some splits and not in others
            end = Follower(named, quiet_ms=_QUIET_MS).end_now()
            if _is_good_end(store, end):
                stop = end if stop is None else min(stop, end)
        splits = plan(log, start, stop, size)
        tail_told = is_table_of_ranges and not live
        landmarks = landmarks_of(store)
    return [
        Reading(
            named.name,
            named.settings,
            split,
            wanted,
            options.mode,
            options.columns,
            start,
            stop,
            tail_told,
            landmarks=landmarks,
        )
        for split in splits
    ]


def _is_good_end(store: Store, at: int) -> bool:
    """Return True if nothing follows an offset at which a stream would wait, or a good record that came since.

    False means that damage follows with records after it, or that the newest record is bad and stays bad.
    """
    segment = store.log.find(at)
    tables = scan_segment(store, segment, ScanOptions(), at, chained=True) if segment is not None else ()
    first = next((table for table in tables if len(table)), None)
    if first is not None and first.kind[0] == FrameKind.MESSAGE:
        return bool(first.code[0] == FrameCode.OK)
    return not has_message_after(store, at)


def _split_size_bytes(store: Store, options: SourceOptions) -> int:
    """Return the size of splits: whole segments for the quarantine and for object stores.

    A table of ranges is quick to read from end to end of a segment. From an object store, the bytes before a split
    would be fetched for nothing.
    """
    size = options.split_size_bytes or SPLIT_SIZE_BYTES
    if options.table == "quarantine" or (options.split_size_bytes is None and is_remote(store.root)):
        return max([size, *(store.log.file_size_bytes or segment.size_bytes for segment in store.log.segments)])
    return size


def followers(options: SourceOptions) -> dict[str, Follower]:
    """Return a follower of each store's log. Raises UsageError for options that a stream cannot have."""
    if options.wanted.from_phy_offset is not None or options.wanted.to_phy_offset is not None:
        raise UsageError("fromOffset and toOffset are for batches", to_do='give option("startingOffset", OFFSET)')
    return {
        named.name: Follower(
            named,
            quiet_ms=options.quiet_ms,
            fail_on_data_loss=options.fail_on_data_loss,
            passes_holes=options.table == "quarantine",
        )
        for named in named_stores(options)
    }


def starts_of(options: SourceOptions, names: Iterable[str]) -> dict[str, Start]:
    """Return where the stream of each store starts: with its earliest record if only other stores are named.

    Raises UsageError for an unknown store.
    """
    names, starting = list(names), options.starting
    if not isinstance(starting, Mapping):
        return dict.fromkeys(names, starting)
    for name in starting.keys() - set(names):
        raise UsageError(f"startingOffset names {name!r}", to_do=f"the stores are {', '.join(names)}")
    return {name: starting.get(name, EARLIEST) for name in names}


def refuse_renamed(known: Iterable[str], now: Iterable[str]) -> None:
    """Raise UsageError where stores of a checkpoint are gone and others are new.

    A store with another name would be read from its start a second time.
    """
    gone, new = sorted(set(known) - set(now)), sorted(set(now) - set(known))
    if gone and new:
        raise UsageError(
            f"the checkpoint has read {', '.join(gone)}, and {', '.join(new)} stands in its place",
            to_do="name the stores as before, NAME=PATH, or start the query with another checkpoint",
        )


def next_offsets(
    followers: Mapping[str, Follower],
    before: Offsets,
    most_bytes: int | None = None,
    target: Mapping[str, int] | None = None,
) -> dict[str, Offset]:
    """Return where the next batch ends, at ``target`` at the latest.

    A store without an offset in ``before`` is read from its earliest record. Stores share ``most_bytes``: those with
    least to read come first, and the others use the remainder.
    """
    begin = {
        name: end_of(before[name]) if name in before else follower.first(EARLIEST)
        for name, follower in followers.items()
    }
    lasts = {name: last_of(before.get(name)) for name in followers}
    spans = _share_limit(followers, begin, lasts, most_bytes, target)
    found = dict(before)
    for name, span in spans.items():
        last = followers[name].last_in(span, lasts[name] if span.begin == begin[name] else None)
        found[name] = offset_after(before.get(name), span, last)
    return found


def _share_limit(
    followers: Mapping[str, Follower],
    begin: Mapping[str, int],
    lasts: Mapping[str, Last | None],
    most_bytes: int | None,
    target: Mapping[str, int] | None,
) -> dict[str, Span]:
    reach = {name: follower.reach(begin[name], most_bytes, lasts[name]) for name, follower in followers.items()}
    if target is not None:
        reach = {name: Span(a, max(a, min(b, target[name]))) for name, (a, b) in reach.items()}
    if most_bytes is None or len(reach) == 1:
        return reach
    remaining, found = most_bytes, {}
    for number, name in enumerate(sorted(reach, key=lambda name: reach[name].end - reach[name].begin)):
        share = max(remaining // (len(reach) - number), 1)
        span = reach[name]
        if span.end - span.begin > share:
            shorter = followers[name].reach(span.begin, share, lasts[name] if span.begin == begin[name] else None)
            span = shorter if shorter.begin != span.begin else Span(span.begin, min(shorter.end, span.end))
        found[name] = span
        remaining -= span.end - span.begin
    return found


def refuse_changed(options: SourceOptions, followers: Mapping[str, Follower], before: Offsets, after: Offsets) -> None:
    """Raise StoreError where a batch that another run planned would be read otherwise than planned.

    Spark commits that batch before it asks how far the logs reach, and never reads it again.
    """
    for name, span in spans_between(before, after).items():
        if name in followers:
            followers[name].check(span, last_of(before.get(name)), last_of(after[name]))
        elif options.fail_on_data_loss:
            raise UsageError(
                f"the checkpoint has a batch that is not done and reads {name}, which is not named",
                to_do="name the stores as before until that batch is done",
            )


def stream_readings(options: SourceOptions, before: Offsets, after: Offsets) -> list[Reading]:
    """Return the splits between two offsets; the same two always give the same rows.

    Raises FailedError if data is missing and ``failOnDataLoss`` is set.
    """
    spans = spans_between(before, after)
    return [
        reading
        for named in named_stores(options)
        if named.name in spans
        for reading in _between(named, options, spans[named.name])
    ]


def _between(named: Named, options: SourceOptions, span: Span) -> list[Reading]:
    start, stop = span
    is_table_of_ranges = options.table == "quarantine"
    with Store.open(named.settings.root, named.settings) as store:
        if options.fail_on_data_loss and start < store.log.min_phy_offset:
            raise data_lost(named, start, f"the log begins at {store.log.min_phy_offset}; what lay between is gone")
        if options.fail_on_data_loss and not is_table_of_ranges:
            refuse_gaps(store.log, named, span)
        size = _WHOLE if is_table_of_ranges else _split_size_bytes(store, options)
        splits = plan(store.log, start, stop, size, certain=start)
        if is_table_of_ranges and not splits:  # all of it is missing
            splits = [SourceSplit(start, start, stop)]
        landmarks = landmarks_of(store)
    return [
        Reading(
            named.name,
            named.settings,
            split,
            options.wanted,
            options.mode,
            options.columns,
            start,
            stop,
            goes_on=True,
            may_be_gone=not options.fail_on_data_loss,
            landmarks=landmarks,
        )
        for split in splits
    ]
