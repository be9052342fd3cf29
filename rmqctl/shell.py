"""Build the commands for typer, loading a command's module only when it is called, and format the help."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from rmqctl import exit_codes
from rmqctl.commands import CommandEntry, built_commands
from rmqctl.context import Context
from rmqctl.options import COLUMN_FORMATS, PANEL, Format, GlobalOptions, global_options
from rmqctl.output.formats import Output
from rmqctl.session import Session
from rmqctl.values import as_text
from store_core.errors import UsageError

_HELP: Final = "Administer Apache RocketMQ broker stores without a broker: inspect, verify, recover, query, export."
_CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_MARKUP: Final = re.compile(r"\[(?=[a-z#/@])")


# typer names no classes for its parameters, formatters and plain commands, so their type is Any.
@cache
def _global_options() -> tuple[inspect.Parameter, ...]:
    return tuple(map(as_text, inspect.signature(global_options, eval_str=True).parameters.values()))


def _command(function: Callable[..., Any], *, rich_help: bool = False, **named: Any) -> Any:
    """Make a typer command of a function."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich" if rich_help else None
    )
    app.command(**named)(function)
    return get_command(app)


class _WithGlobalOptions(TyperCommand):
    """A command that takes the global options besides its own, and shows them in a section of their own."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]  # as in click: TOPIC QUEUE_ID

    def get_help_option(self, ctx: Any) -> Any:
        return _in_panel(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_parameters(self, ctx, formatter)


class LazyGroup(TyperGroup):
    """The group of all commands: lists them from the table, and imports a command's module when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None or stub is None:
            return name, stub, rest
        return name, load_command(built_commands()[name], rich_help=self.rich_markup_mode is not None), rest

    def get_help_option(self, ctx: Any) -> Any:
        return _in_panel(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            entry = built_commands()[name]
            groups.setdefault(entry.group, []).append((name, entry.summary))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)
        _format_parameters(self, ctx, formatter)

    def run(self, session: Session) -> int:
        """Parse the session's arguments, run the command, and return its exit code. Without arguments, show the help."""
        try:
            with self.make_context(self.name, list(session.args) or ["--help"], obj=session) as ctx:
                code = self.invoke(ctx)
        except typer.Exit as end:
            return end.exit_code
        return exit_codes.OK if code is None else int(code)


def build_group(program: str, *, rich_help: bool) -> LazyGroup:
    """Return the program's group with its commands as stubs."""
    stubs: dict[str, Any] = {
        name: TyperCommand(name, help=entry.summary, short_help=entry.summary, rich_help_panel=entry.group)
        for name, entry in built_commands().items()
    }
    return LazyGroup(
        name=program,
        commands=stubs,
        help=_HELP,
        params=_command(_with_signature(lambda **_: None, _global_options())).params,
        context_settings=dict(_CONTEXT_SETTINGS),
        rich_markup_mode="rich" if rich_help else None,
    )


def load_command(entry: CommandEntry, *, rich_help: bool) -> Any:
    """Import a command's module and return the typer command of its function."""
    function = getattr(importlib.import_module(f"rmqctl.commands.{entry.module}"), entry.module)
    text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:")
    example = f"Example:{example}"
    command = _command(
        _callback(function, entry),
        rich_help=rich_help,
        name=entry.name,
        cls=_WithGlobalOptions,
        help=_markup_escaped(text) if rich_help else text,
        epilog=_markup_escaped(example) if rich_help else f"\b\n{example}",
        rich_help_panel=entry.group,
    )
    for parameter in command.params:
        if rich_help and parameter.help and parameter.rich_help_panel != PANEL:
            parameter.help = _markup_escaped(parameter.help)
    return command


def _callback(function: Callable[..., int | None], entry: CommandEntry) -> Callable[..., int]:
    """Wrap a command's function for typer: it takes typer's context instead of its own, and the global options."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    names = {parameter.name for parameter in own}
    clashes = names.intersection(parameter.name for parameter in _global_options())
    assert not clashes, f"{entry.name}: {clashes} are global options"

    def call(*, typer_context: typer.Context, **values: Any) -> int:
        context = make_context(entry, typer_context)
        code = function(context, **{name: value for name, value in values.items() if name in names})
        return exit_codes.OK if code is None else code

    context = inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    call.__name__ = entry.module
    call.__doc__ = function.__doc__
    return _with_signature(call, [*map(as_text, own), *_global_options(), context])


def _with_signature(function: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Set the signature and annotations that inspect and typer read from a function."""
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def make_context(entry: CommandEntry, ctx: typer.Context) -> Context:
    """Make the command's context from the options before and after its name, and set the session's output."""
    session: Session = ctx.find_root().obj
    options = GlobalOptions.merged(ctx.parent.params if ctx.parent else {}, ctx.params)
    if options.output in COLUMN_FORMATS:
        _refuse_columns(entry, options.output)
    output = Output(
        sys.stdout,
        options.output,
        piped=entry.piped,
        zone=options.zone,
        color=not session.no_color,
        describe=_describe,
    )
    session.output = output
    if len(options.stores) > 1 and not entry.several_stores:
        raise UsageError(f"{entry.name} works on one store", to_do="name one store with -s")
    return Context(entry.name, options, output)


def _refuse_columns(entry: CommandEntry, form: Format) -> None:
    if not entry.has_columns:
        texts = ", ".join(name for name in get_args(Format) if name not in COLUMN_FORMATS)
        raise UsageError(f"{entry.name} does not write {form}", to_do=f"expected one of {texts} for -o")
    if sys.stdout.isatty():
        raise UsageError(f"{form} is nothing for a terminal", to_do=f"send it to a file or a program: > rows.{form}")


def _describe(error: BaseException) -> Mapping[str, Any] | None:
    from rmqctl.failures import describe

    return describe(error)


def _in_panel(option: Any) -> Any:
    if option is not None:
        option.rich_help_panel = PANEL
    return option


def _format_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the plain help's sections: arguments, the command's own options, the global ones."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], PANEL: []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections[getattr(parameter, "rich_help_panel", None) or default].append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _markup_escaped(text: str) -> str:
    """Escape help text so that Rich takes no bracket for markup."""
    return _MARKUP.sub(r"\\[", text)
