"""Commands as typer sees them: the group that loads a command's module only when it is called, and the help."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import typer
from typer._click import Command as ClickCommand  # typer 0.28 carries its own click
from typer._click import Context as ClickContext
from typer._click import HelpFormatter, Parameter
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command_from_info, get_params_convertors_ctx_param_name_from_function
from typer.models import CommandInfo

from rmqctl import __version__, exit_codes
from rmqctl.commands import CommandEntry, built_commands
from rmqctl.context import Context
from rmqctl.options import PANEL, GlobalOptions, global_options
from rmqctl.output import Output
from rmqctl.session import Session
from store_core.errors import UsageError

_HELP: Final = "Administer Apache RocketMQ broker stores without a broker: inspect, verify, recover, query, export."
_CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_EXAMPLE: Final = re.compile(r"\n\s*\n(?=Example:)")
_MARKUP: Final = re.compile(r"\[(?=[a-z#/@])")


@cache
def _global_parameters() -> tuple[Parameter, ...]:
    parameters, _, _ = get_params_convertors_ctx_param_name_from_function(global_options)
    return tuple(parameters)


class _WithGlobalOptions(TyperCommand):
    """A command that takes the global options besides its own, and shows them in a section of their own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: ClickContext | None = None, **extra: Any
    ) -> ClickContext:
        return _version_answered(super().make_context(info_name, args, parent, **extra))

    def get_help_option(self, ctx: ClickContext) -> TyperOption | None:
        return _in_panel(super().get_help_option(ctx))

    def format_options(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        _format_parameters(self, ctx, formatter)


class LazyGroup(TyperGroup):
    """The program: lists its commands from the table, and imports a command's module when it is called."""

    def resolve_command(self, ctx: ClickContext, args: list[str]) -> tuple[str | None, ClickCommand | None, list[str]]:
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None or stub is None:
            return name, stub, rest
        return name, load_command(built_commands()[name], rich_help=self.rich_markup_mode is not None), rest

    def make_context(
        self, info_name: str | None, args: list[str], parent: ClickContext | None = None, **extra: Any
    ) -> ClickContext:
        return _version_answered(super().make_context(info_name, args, parent, **extra))

    def get_help_option(self, ctx: ClickContext) -> TyperOption | None:
        return _in_panel(super().get_help_option(ctx))

    def format_options(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            entry = built_commands()[name]
            groups.setdefault(entry.group, []).append((name, entry.summary))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)
        _format_parameters(self, ctx, formatter)

    def run(self, session: Session) -> int:
        """Parse the session's words, run the command, and return its exit code. Without words: the help."""
        try:
            with self.make_context(self.name, list(session.args) or ["--help"], obj=session) as ctx:
                code = self.invoke(ctx)
        except typer.Exit as end:
            return end.exit_code
        return exit_codes.OK if code is None else int(code)


def build_group(program: str, *, rich_help: bool) -> LazyGroup:
    """The whole program with its commands as stubs."""
    stubs: dict[str, ClickCommand] = {
        name: TyperCommand(name, help=entry.summary, short_help=entry.summary, rich_help_panel=entry.group)
        for name, entry in built_commands().items()
    }
    return LazyGroup(
        name=program,
        commands=stubs,
        help=_HELP,
        params=list(_global_parameters()),
        context_settings=dict(_CONTEXT_SETTINGS),
        rich_markup_mode="rich" if rich_help else None,
    )


def load_command(entry: CommandEntry, *, rich_help: bool) -> ClickCommand:
    """Import a command's module and make the typer command of its function."""
    function = getattr(importlib.import_module(f"rmqctl.commands.{entry.module}"), entry.function)
    text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:")
    example = f"Example:{example}"
    command = get_command_from_info(
        CommandInfo(
            entry.name,
            cls=_WithGlobalOptions,
            callback=_callback(function, entry),
            help=_markup_escaped(text) if rich_help else text,
            epilog=_markup_escaped(example) if rich_help else f"\b\n{example}",
            rich_help_panel=entry.group,
        ),
        pretty_exceptions_short=False,
        rich_markup_mode="rich" if rich_help else None,
    )
    for parameter in command.params:
        if rich_help and getattr(parameter, "help", None):
            parameter.help = _markup_escaped(parameter.help)  # type: ignore[attr-defined]  # both kinds have it
    command.params.extend(_global_parameters())
    return command


def _callback(function: Callable[..., int | None], entry: CommandEntry) -> Callable[..., int]:
    """The command's function as typer calls it: without its context, which is made here, and with the global options.

    The global options' values come as further keywords, for they are parameters of the click command.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    names = {parameter.name for parameter in own}
    clashes = names.intersection(parameter.name for parameter in _global_parameters())
    assert not clashes, f"{entry.name}: {clashes} are global options"

    def call(**values: Any) -> int:
        ctx = _current_context()
        context = make_context(entry, ctx)
        code = function(context, **{name: value for name, value in values.items() if name in names})
        return exit_codes.OK if code is None else code

    call.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # what inspect and typer go by
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    call.__name__ = entry.function
    call.__doc__ = function.__doc__
    return call


def _current_context() -> ClickContext:
    from typer._click.globals import get_current_context

    return get_current_context()


def make_context(entry: CommandEntry, ctx: ClickContext) -> Context:
    """The command's context from what stood before and after its name; the session learns where results go."""
    session: Session = ctx.find_root().obj
    options = GlobalOptions.merged(ctx.parent.params if ctx.parent else {}, ctx.params)
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


def _describe(error: BaseException) -> Mapping[str, Any] | None:
    from rmqctl.failures import describe

    return describe(error)


def _version_answered(ctx: ClickContext) -> ClickContext:
    if ctx.params.get("version") and not ctx.resilient_parsing:
        print(f"{ctx.find_root().info_name} {__version__}")
        raise typer.Exit(exit_codes.OK)
    return ctx


def _in_panel(option: TyperOption | None) -> TyperOption | None:
    if option is not None:
        option.rich_help_panel = PANEL
    return option


def _format_parameters(command: ClickCommand, ctx: ClickContext, formatter: HelpFormatter) -> None:
    """The plain help's sections: arguments, the command's own options, the global ones."""
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
    """Help text in which Rich takes no bracket for markup."""
    return _MARKUP.sub(r"\\[", text)
