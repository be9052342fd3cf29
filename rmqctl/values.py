"""Parse arguments of the command line. typer passes text, so that error messages are the same for every release of typer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer

from store_core.errors import UsageError

Read = Callable[[str, typer.Context], Any]
_LABELS: Final = {int: "<int>", float: "<float>"}


class BadValue(typer.BadParameter):
    """The parser's exception with the parameter, the value and what would fit. rmqctl.failures words it."""

    def __init__(self, error: UsageError, ctx: typer.Context, parameter: typer.CallbackParam, value: str) -> None:
        super().__init__(error.what, ctx, parameter)
        self.value = value
        self.expected = error.to_do


def reading(read: Read) -> Callable[..., Any]:
    """Return a callback for a typer parameter that parses its text with ``read``, which raises UsageError."""

    def callback(ctx: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read(value, ctx)
        except UsageError as error:
            raise BadValue(error, ctx, parameter, value) from error

    return callback


def as_text(parameter: Parameter) -> Parameter:
    """Return a command's parameter for typer, with numbers and choices as text that a callback parses."""
    annotation = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return parameter
    wanted, info = get_args(annotation)
    kinds = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    [kind] = [candidate for candidate in kinds if candidate is not NoneType]
    info = copy.copy(info)
    read: Read
    if kind in _LABELS:
        read, label = partial(_number, kind, info.min), _LABELS[kind]
        info.min = None
    elif get_origin(kind) is Literal:
        choices = get_args(kind)
        read, label = partial(_choice, choices), f"<{'|'.join(choices)}>"
        info.autocompletion = info.autocompletion or (lambda: list(choices))
    else:
        return parameter
    info.callback = info.callback or reading(read)
    info.metavar = info.metavar or label
    text: Any = str | None if NoneType in kinds else str
    return parameter.replace(annotation=Annotated[text, info])


def _number(kind: type[int] | type[float], least: float | None, text: str, _: typer.Context) -> int | float:
    with suppress(ValueError):
        number = kind(text)
        if least is None or number >= least:
            return number
    wanted = "a whole number" if kind is int else "a number"
    raise UsageError(f"{text!r} does not fit", to_do=f"expected {wanted}{'' if least is None else f' from {least} on'}")


def _choice(choices: tuple[str, ...], text: str, _: typer.Context) -> str:
    if text not in choices:
        raise UsageError(f"{text!r} is no choice", to_do="expected one of " + ", ".join(choices))
    return text
