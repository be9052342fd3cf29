"""Name the topics in whose records a list of light queues is ignored (store format 10.7)."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from store_core.layout import paths, timer

_MORE: Final = "…"
_SEPARATOR: Final = ", "


class NoLists(Enum):
    """By release, full names or prefixes of topics whose lists of light queues are ignored.

    A service that sends a message on keeps its list and, there, its old queue offsets.
    """

    NOWHERE = ""
    RETRIES = f"{paths.RETRY_PREFIX}{_MORE}"
    WAITING = _SEPARATOR.join((RETRIES, paths.SCHEDULE_TOPIC, timer.TIMER_TOPIC))
    SYSTEM = _SEPARATOR.join((RETRIES, paths.SCHEDULE_TOPIC, f"{paths.SYSTEM_TOPIC_PREFIX}{_MORE}"))

    def covers(self, topic: str) -> bool:
        """Return True if a list in a record of that topic is ignored."""
        names = filter(None, self.value.split(_SEPARATOR))
        return any(
            topic.startswith(name.removesuffix(_MORE)) if name.endswith(_MORE) else topic == name for name in names
        )


NO_LISTS_SINCE: Final = (
    ("4.3.0", NoLists.NOWHERE),
    ("5.1.1", NoLists.RETRIES),
    ("5.1.3", NoLists.WAITING),
    ("5.2.0", NoLists.SYSTEM),
)


def no_lists_of(release: str) -> NoLists:
    """Return the rule of a release: ``X.Y.Z``, or ``X.Y`` or ``X`` for the newest of that line."""
    numbers = [*map(int, re.findall(r"\d+", release)), 99]
    found = (lists for first, lists in reversed(NO_LISTS_SINCE) if [*map(int, first.split("."))] <= numbers)
    return next(found, NoLists.NOWHERE)
