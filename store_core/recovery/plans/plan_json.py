"""Write and read plans as JSON files with everything needed to apply them later."""

from __future__ import annotations

import base64
import binascii
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from store_core.errors import FailedError, UsageError
from store_core.recovery.plans.plan import Built, Content, Op, Piece, Plan, Step, Witness, Zeros
from store_core.storage.digest import WINDOW_SIZE_BYTES
from store_core.storage.files import open_read_only
from store_core.storage.publish import result_problem
from store_core.storage.writer import save_file

OUTLOOK: Final = ("after", "lost")
PROSPECT: Final = "prospect"
_MADE_WITH: Final = "made_with"
LARGEST_PLAN_BYTES: Final = 128 << 20
_FORMAT: Final = "rmqctl plan"
_LARGEST_LITERAL_BYTES: Final = 256 << 20  # sum over all steps, unpacked, because they are held in memory
_TOO_LARGE: Final = 1 << 63  # no length or place in a file
_LATEST_MTIME_NS: Final = _TOO_LARGE * 1_000_000  # a damaged record may claim any store time in milliseconds
_FORMAT_VERSION: Final = 1
_STEP_KEYS: Final = frozenset(("op", "path", "offset", "size_bytes", "expect_crc32c", "expect_file_size_bytes"))
_WITNESS_KEYS: Final = frozenset(("path", "size_bytes", "mtime_ns"))
_sorted: Final = json.JSONEncoder(sort_keys=True).encode
_text_of: Final = json.JSONEncoder().encode

Part = TypeVar("Part")


def identity(plan: Plan) -> Iterator[str]:
    """Yield the JSON text of everything in a plan but its id, in pieces because a plan may have 100,000 steps."""
    yield f'{{"format": {_sorted(_FORMAT)}, "format_version": {_FORMAT_VERSION}, "kind": {_sorted(plan.kind)}, "made_for": ['
    yield from _joined(_sorted(_witness_to_json(witness)) for witness in plan.made_for)
    yield f'], "policy": {_sorted(plan.policy)}, "steps": ['
    yield from _joined(_sorted(_step_to_json(step)) for step in plan.steps)
    yield f'], "store": {_sorted(plan.store)}}}'


def plan_to_bytes(plan: Plan, outlook: Mapping[str, Any] | None = None) -> bytes:
    return b"".join(plan_blocks(plan, outlook))


def plan_blocks(plan: Plan, outlook: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the bytes of a plan file, with a line for each step, in blocks of about a window."""
    block: list[str] = []
    size = 0
    for text in _plan_texts(plan, outlook):
        block.append(text)
        size += len(text)
        if size >= WINDOW_SIZE_BYTES:
            yield "".join(block).encode()
            block.clear()
            size = 0
    yield "".join(block).encode()


def _plan_texts(plan: Plan, outlook: Mapping[str, Any] | None) -> Iterator[str]:
    head = {"id": plan.id, "format": _FORMAT, "format_version": _FORMAT_VERSION}
    head |= {"kind": plan.kind, "policy": plan.policy, "store": plan.store}
    yield _text_of(head)[:-1] + ',\n "made_for": ['
    yield from _joined(("\n  " + _text_of(_witness_to_json(witness)) for witness in plan.made_for), ",")
    yield '],\n "steps": ['
    yield from _joined(("\n  " + _text_of(_step_to_json(step)) for step in plan.steps), ",")
    yield "]" + (',\n "outlook": ' + json.dumps(outlook) if outlook else "") + "}\n"


def _joined(texts: Iterable[str], between: str = ", ") -> Iterator[str]:
    """Yield each text, with ``between`` before all but the first."""
    for number, text in enumerate(texts):
        yield between + text if number else text


@dataclass(frozen=True, slots=True)
class MadeWith:
    """The configuration of a plan: the broker's properties, log folders that the operator named, the release."""

    values: Mapping[str, str] = field(default_factory=dict)
    commitlog: tuple[str, ...] = ()
    broker_version: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "values": dict(self.values),
            "commitlog": list(self.commitlog),
            "broker_version": self.broker_version,
        }


def save_plan(plan: Plan, path: Path | str, outlook: Mapping[str, Any] | None = None) -> None:
    """Write a plan file (``--save``). Raises FailedError.

    ``outlook``: the reported ``after`` and ``lost``, and ``made_with``, for a later `apply`; the id does not cover them.
    """
    data = plan_to_bytes(plan, outlook)
    assert_not_too_large(len(data))
    with result_problem("cannot save the plan"):
        save_file(path, data)


def assert_not_too_large(size_bytes: int) -> None:
    """Raise FailedError for a plan that is too large to be read again."""
    if size_bytes > LARGEST_PLAN_BYTES:
        raise FailedError(
            f"the plan has {size_bytes} bytes, more than {LARGEST_PLAN_BYTES}",
            to_do="make the change in parts, for instance `rebuild queues` before `recover`",
        )


def load_plan(path: Path | str) -> Plan:
    """Read a plan file. Raises UsageError if it is no plan, was edited or cannot be read."""
    try:
        data = _read(Path(path))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"cannot read the plan: {reason}", path=str(path), to_do="name a file made with --save"
        ) from error
    return plan_from_bytes(data, str(path))


def load_outlook(path: Path | str) -> dict[str, Any]:
    """Return ``after`` and ``lost`` as a plan that ``load_plan`` accepts was saved with; None for missing ones."""
    outlook = json.loads(_read(Path(path)), object_hook=_Parts()).get("outlook")
    outlook = outlook if isinstance(outlook, dict) else {}
    return {name: outlook.get(name) for name in OUTLOOK}


def load_prospect(path: Path | str) -> object:
    """Return the unchecked JSON value of the prospect that a plan was saved with; None if it has none."""
    outlook = json.loads(_read(Path(path))).get("outlook")
    return outlook.get(PROSPECT) if isinstance(outlook, dict) else None


def load_made_with(path: Path | str) -> MadeWith:
    """Return the configuration that a plan was saved with; an empty one if the file has none or another type."""
    outlook = json.loads(_read(Path(path)), object_hook=_Parts()).get("outlook")
    found = outlook.get(_MADE_WITH) if isinstance(outlook, dict) else None
    if not isinstance(found, dict):
        return MadeWith()
    values, folders, version = found.get("values"), found.get("commitlog"), found.get("broker_version")
    return MadeWith(
        {k: v for k, v in values.items() if isinstance(v, str)} if isinstance(values, dict) else {},
        tuple(folder for folder in folders if isinstance(folder, str)) if isinstance(folders, list) else (),
        version if isinstance(version, str) else None,
    )


def _read(path: Path) -> bytes:
    with open(open_read_only(path), "rb") as file:
        data = file.read(LARGEST_PLAN_BYTES + 1)
    if len(data) > LARGEST_PLAN_BYTES:
        raise UsageError(
            f"a plan has no more than {LARGEST_PLAN_BYTES} bytes", path=str(path), to_do="name a file made with --save"
        )
    return data


def plan_from_bytes(data: bytes, path: str) -> Plan:
    try:
        found: Any = json.loads(data, object_hook=_Parts())
        plan = _plan_from_json(found)
        intact = plan.id == found["id"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        if _FORMAT.encode() not in data:
            raise UsageError("not a plan", path=path, to_do="name a file made with --save") from error
        raise UsageError(f"the plan cannot be used: {error}", path=path, to_do="make it again with --save") from error
    if not intact:
        raise UsageError("the plan was changed after it was made", path=path, to_do="make it again with --save")
    return plan


def _plan_from_json(found: dict[str, Any]) -> Plan:
    if found["format"] != _FORMAT or found["format_version"] != _FORMAT_VERSION:
        raise ValueError("made by another version of rmqctl")
    return Plan(
        kind=_text(found["kind"]),
        policy=None if found["policy"] is None else _text(found["policy"]),
        store=_text(found["store"]),
        steps=tuple(_all_of(Step, found["steps"])),
        made_for=tuple(_all_of(Witness, found["made_for"])),
    )


def _all_of(kind: type[Part], found: list[object]) -> Iterator[Part]:
    for part in found:
        if not isinstance(part, kind):
            raise ValueError(f"not a {kind.__name__.lower()}: {part!r:.40}")
        yield part


class _Parts:
    """Makes each step and witness as soon as its JSON is read, because dicts of all steps take much more memory."""

    def __init__(self) -> None:
        self._literal_bytes = 0
        self._arguments: Mapping[str, Any] = {}  # shared by all steps with equal arguments

    def __call__(self, found: dict[str, Any]) -> dict[str, Any] | Step | Witness:
        if found.keys() == _WITNESS_KEYS:
            return Witness(_text(found["path"]), _int(found["size_bytes"]), _int(found["mtime_ns"]))
        if found.keys() >= _STEP_KEYS:
            return self._step(found)
        return found

    def _step(self, found: dict[str, Any]) -> Step:
        return Step(
            op=Op(found["op"]),
            path=_text(found["path"]),
            offset=_int_or_none(found["offset"]),
            size_bytes=_int_or_none(found["size_bytes"]),
            expect_crc32c=_int_or_none(found["expect_crc32c"]),
            expect_file_size_bytes=_int_or_none(found["expect_file_size_bytes"]),
            content=self._content(found["content"]) if "content" in found else None,
            mtime_ns=_int_or_none(found.get("mtime_ns"), _LATEST_MTIME_NS),
            why=sys.intern(_text(found.get("why", ""))),
        )

    def _content(self, found: dict[str, Any]) -> Content | Built:
        if "builder" in found:
            if found["arguments"] != self._arguments:
                self._arguments = dict(found["arguments"])
            return Built(
                sys.intern(_text(found["builder"])),
                self._arguments,
                _int_or_none(found["size_bytes"]),
                _int_or_none(found["crc32c"]),
                _int_or_none(found.get("data_bytes")),
            )
        self._assert_fits(found["pieces"])
        return Content(tuple(_piece_from_json(piece) for piece in found["pieces"]))

    def _assert_fits(self, pieces: list[dict[str, Any]]) -> None:
        """Raise ValueError if the literal bytes of all steps need too much memory; rmqctl itself makes plans with few."""
        self._literal_bytes += sum(max(0, _int(piece["size_bytes"])) for piece in pieces if "zlib" in piece)
        if self._literal_bytes > _LARGEST_LITERAL_BYTES:
            raise ValueError(f"more than {_LARGEST_LITERAL_BYTES} bytes to write")


def _witness_to_json(witness: Witness) -> dict[str, Any]:
    return {"path": witness.path, "size_bytes": witness.size_bytes, "mtime_ns": witness.mtime_ns}


def _step_to_json(step: Step) -> dict[str, Any]:
    found = step.row()
    found["expect_file_size_bytes"] = step.expect_file_size_bytes
    if step.content is not None:
        found["content"] = _content_to_json(step.content)
    if step.mtime_ns is not None:
        found["mtime_ns"] = step.mtime_ns
    if step.why:
        found["why"] = step.why
    return found


def _content_to_json(content: Content | Built) -> dict[str, Any]:
    if isinstance(content, Built):
        return {
            "builder": content.builder,
            "arguments": dict(content.arguments),
            "size_bytes": content.size_bytes,
            "crc32c": content.crc32c,
            **({} if content.data_bytes is None else {"data_bytes": content.data_bytes}),
        }
    return {"pieces": [_piece_to_json(piece) for piece in content.pieces]}


def _piece_to_json(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, Zeros):
        return {"zeros": piece.size_bytes}
    return {"size_bytes": len(piece), "zlib": base64.b64encode(zlib.compress(piece)).decode()}


def _piece_from_json(found: dict[str, Any]) -> Piece:
    if "zeros" in found:
        return Zeros(_int(found["zeros"]))
    try:
        packed = base64.b64decode(found["zlib"], validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    size_bytes = _int(found["size_bytes"])
    data = zlib.decompressobj().decompress(packed, size_bytes + 1)  # the limit keeps a false length from costing memory
    if len(data) != size_bytes:
        raise ValueError("bytes of a step are damaged")
    return data


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r:.40}")
    return value


def _int(value: object, limit: int = _TOO_LARGE) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise ValueError(f"not a number: {value!r:.40}")
    return value


def _int_or_none(value: object, limit: int = _TOO_LARGE) -> int | None:
    return None if value is None else _int(value, limit)
