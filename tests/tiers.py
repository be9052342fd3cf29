"""Which tests the default run has: markers of what a test needs, and representatives of large products of cases."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest

_EXHAUSTIVE: Final = pytest.mark.exhaustive
Values = set[tuple[str, str]]


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what needs a broker, and of each test with ``@pytest.mark.product`` the cases that are none of its representatives.

    ``product`` alone keeps as few cases as have each value of each parameter. ``product(12)`` keeps 12 cases, spread over all of them.
    ``product(name=NAMES)`` keeps those in which the parameter has one of these values, and with a count so many of them.
    A case that is run alone, by its own name, is its test's representative.
    """
    products: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if "jars" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
        if isinstance(item, pytest.Function) and item.get_closest_marker("product"):
            products[item.nodeid.partition("[")[0]].append(item)
    for cases in products.values():
        kept = _representatives(cases)
        for case in cases:
            if case.nodeid not in kept:
                case.add_marker(_EXHAUSTIVE)


def _representatives(cases: list[pytest.Function]) -> set[str]:
    marker = cases[0].get_closest_marker("product")
    assert marker is not None
    named: dict[str, Collection[Any]] = marker.kwargs
    eligible = [case for case in cases if all(_parameters(case)[name] in kept for name, kept in named.items())]
    if not eligible:
        return {cases[0].nodeid}
    if marker.args:
        [count] = marker.args
        return {eligible[n * len(eligible) // count].nodeid for n in range(min(count, len(eligible)))}
    return {case.nodeid for case in (eligible if named else _each_value_once(eligible))}


def _each_value_once(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Go through the cases in an order that is as good as drawn, and the same in every run; take what has a value not seen yet."""
    seen: Values = set()
    found = []
    for case in sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode())):
        values = {(name, repr(value)) for name, value in _parameters(case).items()}
        if not values <= seen:
            seen |= values
            found.append(case)
    return found


def _parameters(case: pytest.Function) -> dict[str, Any]:
    return case.callspec.params if hasattr(case, "callspec") else {}
