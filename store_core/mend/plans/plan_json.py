"""Plans as JSON files that hold everything needed to apply them later."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from store_core.errors import FailedError, UsageError
from store_core.mend.plans.content import Built, Content, Piece, Zeros
from store_core.mend.plans.plan import Op, Plan, Step, Witness
from store_core.storage.files import open_read_only
from store_core.storage.publish import told_of_result
from store_core.storage.writer import save_file

OUTLOOK: Final = ("after", "lost")
PROSPECT: Final = "prospect"
_MADE_WITH: Final = "made_with"
LARGEST_PLAN_BYTES: Final = 128 << 20
_FORMAT: Final = "rmqctl plan"
_LARGEST_LITERAL_BYTES: Final = 256 << 20  # of all steps, unpacked: they are held in memory
_TOO_LARGE: Final = 1 << 63  # no length or place in a file
_LATEST_MTIME_NS: Final = _TOO_LARGE * 1_000_000  # a damaged record may claim any store time in milliseconds
_FORMAT_VERSION: Final = 1


def identity(plan: Plan) -> dict[str, Any]:
    """What makes a plan that plan: everything but its id."""
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "kind": plan.kind,
        "policy": plan.policy,
        "store": plan.store,
        "made_for": [{"path": w.path, "size_bytes": w.size_bytes, "mtime_ns": w.mtime_ns} for w in plan.made_for],
        "steps": [_step_to_json(step) for step in plan.steps],
    }


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The whole plan as a JSON object."""
    return {"id": plan.id, **identity(plan)}


def plan_to_bytes(plan: Plan, outlook: Mapping[str, Any] | None = None) -> bytes:
    return json.dumps({**plan_to_json(plan), **({"outlook": outlook} if outlook else {})}, indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class MadeWith:
    """The configuration that a plan was made with: the broker's properties, log folders named by the user, the release."""

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

    ``outlook`` is what was reported when the plan was made (``after``, ``lost``) and ``made_with``, for a later `apply`. Its
    id does not cover these.
    """
    data = plan_to_bytes(plan, outlook)
    assert_not_too_large(data)
    with told_of_result("cannot save the plan"):
        save_file(path, data)


def assert_not_too_large(data: bytes) -> None:
    """Raise FailedError for a plan that nothing would read again."""
    if len(data) > LARGEST_PLAN_BYTES:
        raise FailedError(
            f"the plan has {len(data)} bytes, more than {LARGEST_PLAN_BYTES}",
            to_do="make the change in parts, for instance `rebuild queues` before `recover`",
        )


def load_plan(path: Path | str) -> Plan:
    """Read a plan file. Raises UsageError where it is none, was changed by hand or cannot be read."""
    try:
        data = _read(Path(path))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"cannot read the plan: {reason}", path=str(path), to_do="name a file made with --save"
        ) from error
    return plan_from_bytes(data, str(path))


def load_outlook(path: Path | str) -> dict[str, Any]:
    """``after`` and ``lost`` as they were told when a plan that ``load_plan`` takes was saved; None where they were not."""
    outlook = json.loads(_read(Path(path))).get("outlook")
    outlook = outlook if isinstance(outlook, dict) else {}
    return {name: outlook.get(name) for name in OUTLOOK}


def load_prospect(path: Path | str) -> object:
    """Return what a plan was saved with of the store that it leaves, as it stands there; None where it was not."""
    outlook = json.loads(_read(Path(path))).get("outlook")
    return outlook.get(PROSPECT) if isinstance(outlook, dict) else None


def load_made_with(path: Path | str) -> MadeWith:
    """Return the configuration that a plan was saved with; an empty one where the file has none or something else."""
    outlook = json.loads(_read(Path(path))).get("outlook")
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
    found: Any = None
    try:
        found = json.loads(data)
        plan = _plan_from_json(found)
        intact = plan.id == found["id"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        if not (isinstance(found, dict) and found.get("format") == _FORMAT):
            raise UsageError("not a plan", path=path, to_do="name a file made with --save") from error
        raise UsageError(f"the plan cannot be used: {error}", path=path, to_do="make it anew with --save") from error
    if not intact:
        raise UsageError("the plan was changed after it was made", path=path, to_do="make it anew with --save")
    return plan


def _plan_from_json(found: dict[str, Any]) -> Plan:
    if found["format"] != _FORMAT or found["format_version"] != _FORMAT_VERSION:
        raise ValueError("made by another version of rmqctl")
    _assert_fits(found["steps"])
    return Plan(
        kind=_text(found["kind"]),
        policy=None if found["policy"] is None else _text(found["policy"]),
        store=_text(found["store"]),
        steps=tuple(_step_from_json(step) for step in found["steps"]),
        made_for=tuple(
            Witness(_text(w["path"]), _int(w["size_bytes"]), _int(w["mtime_ns"])) for w in found["made_for"]
        ),
    )


def _assert_fits(steps: list[dict[str, Any]]) -> None:
    """Raise ValueError where the literal bytes of all steps, which are few in every plan that rmqctl makes, need too much memory."""
    pieces = (piece for step in steps for piece in step.get("content", {}).get("pieces", ()))
    if sum(max(0, _int(piece["size_bytes"])) for piece in pieces if "zlib" in piece) > _LARGEST_LITERAL_BYTES:
        raise ValueError(f"more than {_LARGEST_LITERAL_BYTES} bytes to write")


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


def _step_from_json(found: dict[str, Any]) -> Step:
    return Step(
        op=Op(found["op"]),
        path=_text(found["path"]),
        offset=_int_or_none(found["offset"]),
        size_bytes=_int_or_none(found["size_bytes"]),
        expect_crc32c=_int_or_none(found["expect_crc32c"]),
        expect_file_size_bytes=_int_or_none(found["expect_file_size_bytes"]),
        content=_content_from_json(found["content"]) if "content" in found else None,
        mtime_ns=_int_or_none(found.get("mtime_ns"), _LATEST_MTIME_NS),
        why=_text(found.get("why", "")),
    )


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


def _content_from_json(found: dict[str, Any]) -> Content | Built:
    if "builder" in found:
        return Built(
            _text(found["builder"]),
            dict(found["arguments"]),
            _int_or_none(found["size_bytes"]),
            _int_or_none(found["crc32c"]),
            _int_or_none(found.get("data_bytes")),
        )
    return Content(tuple(_piece_from_json(piece) for piece in found["pieces"]))


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
    data = zlib.decompressobj().decompress(packed, size_bytes + 1)  # a length that lies costs no memory
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
