"""`recover --report`: where it may be saved, what the page is made of, and that nothing a store holds can harm its reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from rmqctl.report.page import Reader, page
from store_core.broker.versions import Version
from store_core.recovery.loss_report.build import loss_report
from store_core.recovery.loss_report.log_strips import Span, SpanKind
from store_core.recovery.loss_report.model import (
    DelayedLoss,
    EarlyDeliveries,
    GroupLoss,
    HalfMessages,
    Loss,
    LossReport,
    LostRange,
    OpenHalf,
    QueueLoss,
    SegmentStrip,
    TimeSpan,
)
from store_core.recovery.recover import recover
from store_core.storage.settings import load_settings
from store_core.storage.store import Store
from tests import stores
from tests.conftest import DamagedStore, StoreCopy, differences
from tests.rmqctl.calls import call

ELEMENTS: Final = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "section",
        "footer",
        "h1",
        "h2",
        "h3",
        "p",
        "div",
        "span",
        "small",
        "code",
        "pre",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "wbr",
        "svg",
        "defs",
        "pattern",
        "rect",
    ]
)
WITHOUT_END: Final = frozenset({"meta", "wbr"})
ATTRIBUTES: Final = frozenset(
    [
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "class",
        "scope",
        "data-label",
        "id",
        "width",
        "height",
        "x",
        "y",
        "role",
        "aria-label",
        "aria-hidden",
        "patternunits",
        "patterntransform",
    ]
)
HOSTILE: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title><!--",
    "&lt;b&gt;",
    "\x1b[31mred\u202egnp.exe",
    "%RETRY%" + "a-very-long-group-name-" * 8,
)
MIB: Final = 1 << 20
GIB: Final = 1 << 30
START_MS: Final = 1_795_227_518_538


class Page(HTMLParser):
    """Checks that every element is known and closed where it must be; ``text`` is what a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.styles = ""
        self.told: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        self.seen.append(tag)
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            assert value is not None
        self.attributes += attrs
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles += data
        else:
            self.told.append(data)

    @property
    def text(self) -> str:
        return "".join(self.told)


def assert_needs_nothing(html: str) -> Page:
    """Well formed, and nothing is fetched or run."""
    parsed = Page(html)
    assert re.findall(r"url\((?!#p-)|@import|expression\(|https?:", parsed.styles) == []
    assert not [value for _, value in parsed.attributes if value and re.match(r"\s*(javascript|data|https?):", value)]
    assert parsed.seen.count("h1") == parsed.seen.count("main") == parsed.seen.count("head") == 1
    return parsed


@pytest.fixture
def sample(damaged: DamagedStore) -> Path:
    return damaged("load-533", "flip-body-mid", "crash")


@pytest.fixture
def real(sample: Path, settings_of: Callable[[str], Path]) -> LossReport:
    with Store.open(sample, load_settings(settings_of("load-533"), sample)) as store:
        return loss_report(store, recover(store, "keep", Version.parse("5.3.3")), made_timestamp_ms=START_MS)


def test_the_page_of_a_damaged_store(sample: Path, tmp_path: Path) -> None:
    before, target = stores.snapshot(sample), tmp_path / "loss.html"
    done = call("recover", "-s", sample, "--report", target, "-o", "json")
    assert (done.code, done.err) == (3, f"note: loss report saved as {target}\n")
    assert differences(before, stores.snapshot(sample)) == []
    parsed = assert_needs_nothing(target.read_text())
    for told in (
        "A broker started now would throw away 894 of 2,183 known messages. All but 1 message can be kept.",
        str(sample),
        "log cut at 567,104",
        "3 log files and 1 index file deleted",
        "CK200366",
        "Calm_g2",
        "00000000000000524288: 355 B lost, cut by a broker",
        f"rmqctl recover -s {sample} --apply",
    ):
        assert told in parsed.text, told
    assert parsed.seen.count("svg") > 8  # the whole log, its eight segments, the legend


def test_the_data_is_what_recover_tells(sample: Path, tmp_path: Path) -> None:
    target = tmp_path / "loss.json"
    told = call("recover", "-s", sample, "--report", target, "-o", "json").json
    saved = json.loads(target.read_text())
    assert (saved["report"], saved["format"], saved["store"]["path"]) == ("loss", 1, str(sample))
    assert saved["broker_version"] == told["broker_version"]
    for part, runs in (("broker", told["prediction"]["lost"]), ("kept", told["lost"])):
        loss = saved[part]["loss"]
        flat = [
            (queue["topic"], queue["queue_id"], lost["first_queue_offset"], lost["last_queue_offset"], lost["messages"])
            for queue in loss["queues"]
            for lost in queue["ranges"]
        ]
        assert flat == sorted(
            (r["topic"], r["queue_id"], r["first_queue_offset"], r["last_queue_offset"], r["messages"]) for r in runs
        )
        assert loss["lost_messages"] == sum(row[4] for row in flat)
    assert saved["kept"]["plan_id"] == told["plan"]["id"]
    assert [strip["name"] for strip in saved["log"]] == sorted(p.name for p in (sample / "commitlog").iterdir())


def test_a_prediction_has_a_report_too(sample: Path, tmp_path: Path) -> None:
    page_file, data_file = tmp_path / "loss.HTM", tmp_path / "loss.json"
    assert call("recover", "-s", sample, "--predict", "--report", page_file).code == 3
    assert call("recover", "-s", sample, "--predict", "--report", data_file).code == 3
    parsed = assert_needs_nothing(page_file.read_text())
    assert "A broker started now would throw away 894 of 2,182 known messages." in parsed.text
    assert "What can be kept" not in parsed.text
    assert json.loads(data_file.read_text())["kept"] is None


def test_a_report_is_about_the_store_before_it_is_mended(sample: Path, tmp_path: Path) -> None:
    target = tmp_path / "loss.json"
    assert call("recover", "-s", sample, "--apply", "-q", "--report", target).code == 0
    assert json.loads(target.read_text())["broker"]["loss"]["lost_messages"] == 895


def test_a_sane_store_has_a_short_page(store_copy: StoreCopy, tmp_path: Path) -> None:
    target = tmp_path / "loss.html"
    assert call("recover", "-s", store_copy("clean-533"), "--report", target).code == 0
    parsed = assert_needs_nothing(target.read_text())
    assert "Nothing is lost." in parsed.text
    assert "Nothing has to be mended." in parsed.text


@pytest.mark.parametrize("place", ["inside", "there", "dangling", "no-folder", "pdf", "folder.html", "-"])
def test_places_that_are_none(place: str, sample: Path, tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "dangling.html").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "way").symlink_to(sample / "config")
    target: Path | str = {
        "inside": tmp_path / "way" / "loss.html",
        "there": tmp_path / "there.html",
        "dangling": tmp_path / "dangling.html",
        "no-folder": tmp_path / "no" / "loss.html",
        "pdf": tmp_path / "loss.pdf",
        "folder.html": tmp_path / "folder.html",
        "-": "-",
    }[place]
    before = stores.snapshot(tmp_path)
    done = call("recover", "-s", sample, "--apply", "--report", target)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert differences(before, stores.snapshot(tmp_path)) == []


def test_people_are_told_of_groups_without_a_report(sample: Path) -> None:
    planned, predicted = call("recover", "-s", sample), call("recover", "-s", sample, "--predict")
    assert "consumer groups would miss messages: Calm_g2 5, Calm_g1 3." in planned.out
    assert "Consumer groups that would lose messages\n" in predicted.out
    assert re.search(r"^Calm_g1 +6 +465 +3 +6$", predicted.out, re.MULTILINE)


def hostile(real: LossReport) -> LossReport:
    """A report in which every text that a store supplies is meant to harm."""
    assert real.kept is not None
    span = TimeSpan(START_MS, None, "neighbours")
    queues = tuple(
        QueueLoss(name, n, (LostRange(1, 3, 3, 999, span, (name,)),), span) for n, name in enumerate(HOSTILE)
    )
    groups = tuple(GroupLoss(name, name, 0, 2, "in", 1, 2, 1, True) for name in HOSTILE)
    halves = tuple(OpenHalf(0, 1, 2, START_MS, name, name, name, (name,), True, False) for name in HOSTILE)
    loss = Loss(
        21,
        queues,
        1,
        77,
        groups,
        HalfMessages(7, 7, 1, 1, halves),
        (DelayedLoss("SCHEDULE_TOPIC_XXXX", 2, 3, 4, 1),),
        tuple(EarlyDeliveries(name, 1) for name in HOSTILE),
        1,
    )
    strips = tuple(replace(strip, name=HOSTILE[0]) for strip in real.segments)
    return replace(
        real,
        store=replace(real.store, path=HOSTILE[1]),
        broker_version={"assumed": HOSTILE[0], "possible": list(HOSTILE), "evidence": list(HOSTILE)},
        broker=replace(real.broker, loss=loss, first_file_scanned=HOSTILE[2], reason=HOSTILE[0]),
        kept=replace(real.kept, loss=loss, plan_id=HOSTILE[3]),
        segments=strips,
        notes=HOSTILE,
    )


def test_nothing_that_a_store_holds_is_taken_for_markup(real: LossReport) -> None:
    report = hostile(real)
    html = page(report, Reader(arguments=("-s", HOSTILE[1])))
    parsed = assert_needs_nothing(html)
    for name in HOSTILE[:5]:
        assert parsed.text.count(name) >= 6, name
    assert not set("\x1b\u202e") & set(html)
    refusing = replace(report, broker=replace(report.broker, starts=False, loss=None))
    assert "A broker would not start" in assert_needs_nothing(page(refusing, Reader())).text


def strip_of(number: int, damages: int) -> SegmentStrip:
    start, spans, kinds = number * GIB, list[Span](), ("lost", "damaged", "zero", "stale", "hole")
    at = start
    for n in range(damages):
        kind: SpanKind = kinds[n % len(kinds)]  # type: ignore[assignment]  # one of these
        spans += [Span("good", at, MIB), Span(kind, at + MIB, 4096)]
        at += MIB + 4096
    spans.append(Span("good", at, start + GIB - at))
    totals: dict[SpanKind, int] = {}
    for span in spans:
        totals[span.kind] = totals.get(span.kind, 0) + span.size_bytes
    return SegmentStrip(f"{start:020}", start, GIB, tuple(spans), totals)


@pytest.mark.product(1)
@pytest.mark.parametrize(("segments", "runs", "most_bytes"), [(1, 1, 40_000), (3000, 10_000, 700_000)])
def test_pages_stay_small_whatever_is_lost(segments: int, runs: int, most_bytes: int, real: LossReport) -> None:
    assert real.kept is not None
    span = TimeSpan(START_MS, START_MS + 5, "records")
    ranges = tuple(LostRange(n * 7, n * 7 + 1, 2, 800, span, (f"KEY{n}",)) for n in range(runs))
    queues = tuple(QueueLoss(f"T{n % 9}", n, ranges[n::2000], span) for n in range(min(runs, 2000)))
    groups = tuple(GroupLoss(f"g{n}", q.topic, q.queue_id, 9, "in", 1, 1, 4, False) for n, q in enumerate(queues))
    halves = tuple(OpenHalf(0, n, n, START_MS, "T", "p", f"U{n}", (), True, True) for n in range(min(runs, 1000)))
    loss = Loss(2 * runs, queues, 0, 0, groups, HalfMessages(runs, 0, 0, 0, halves), ())
    report = replace(
        real,
        segments=tuple(strip_of(n, 400 if n % 3 == 1 else 0) for n in range(segments)),
        broker=replace(real.broker, loss=loss, max_phy_offset=segments * GIB // 2),
        kept=replace(real.kept, loss=loss),
    )
    html = page(report, Reader())
    parsed = assert_needs_nothing(html)
    assert len(html.encode()) < most_bytes
    assert f"{segments:,} segment" in parsed.text
    if segments > 1:
        shown = {int(n) for n in re.findall(r"(\d+) segments", parsed.text.replace(",", ""))}
        assert sum(shown) > segments / 2  # those without a strip of their own are counted
        assert "1,920 more queues with 19,200 messages" in parsed.text
