"""`rmqctl explain`: what a finding code means."""

from __future__ import annotations

from dataclasses import asdict
from difflib import SequenceMatcher
from typing import Annotated, Final

import typer

from rmqctl.context import Context
from rmqctl.output.document import Block, Facts, Text
from store_core.errors import UsageError
from store_core.findings import KINDS, Kind

_LIKE: Final = 0.5


def _complete_codes(ctx: typer.Context, args: list[str], incomplete: str) -> list[tuple[str, str]]:
    lower = incomplete != incomplete.upper()
    return [(code.lower() if lower else code, kind.title) for code, kind in KINDS.items()]


def explain(
    ctx: Context,
    code: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CODE]...", help="Finding codes; all without any.", autocompletion=_complete_codes),
    ] = None,
) -> None:
    """Explain finding codes: what they mean and what to do about them.

    Example: rmqctl explain L001 Q007
    """
    if not code:
        ctx.output.emit(
            {"codes": [asdict(kind) for kind in KINDS.values()]}, rows="codes", columns=("code", "severity", "title")
        )
        return
    kinds = [_kind(each) for each in code]
    blocks = [block for kind in kinds for block in _blocks(kind)]
    if len(kinds) == 1:
        ctx.output.emit(asdict(kinds[0]), blocks=blocks)
    else:
        ctx.output.emit({"codes": [asdict(kind) for kind in kinds]}, rows="codes", blocks=blocks)


def _blocks(kind: Kind) -> list[Block]:
    facts = Facts({"code": kind.code, "severity": kind.severity}, kind.title)
    return [facts, Text(kind.explanation), Text(kind.advice)]


def _kind(code: str) -> Kind:
    if (kind := KINDS.get(code.strip().upper())) is not None:
        return kind
    near = ", ".join(_near(code.strip().upper()))
    to_do = f"did you mean {near}?" if near else "run `rmqctl explain` for all codes"
    raise UsageError(f"unknown finding code {code!r}", to_do=to_do)


def _near(code: str) -> list[str]:
    """The known codes most like a wrong one, best first, in code order where equally like."""
    likeness = {known: SequenceMatcher(None, known, code).ratio() for known in KINDS}
    return sorted((c for c in KINDS if likeness[c] >= _LIKE), key=lambda c: (-likeness[c], c))[:3]
