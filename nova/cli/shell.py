"""Adapters that run declared commands with cliff, which parses arguments and formats results."""

import argparse
from collections.abc import Sequence
from typing import Any, TextIO

from cliff import command, lister, show

from nova.cli.client import Nova
from nova.cli.declare import Declared
from nova.cli.errors import UsageError
from nova.cli.output import TEXT, Formatters, shown


class Terminal:
    """The application object that cliff commands need: the client and the output stream."""

    def __init__(self, nova: Nova, stdout: TextIO) -> None:
        self.nova = nova
        self.stdout = stdout


class _Declared(command.Command):
    """A cliff command without plug-in hooks, whose search for entry points would slow down every command."""

    declared: Declared
    conflict_handler = "error"

    def _load_hooks(self) -> None:
        self._hooks = []

    def get_description(self) -> str:
        return (self.declared.function.__doc__ or "").strip()

    def get_epilog(self) -> str:
        since = self.declared.since
        return f"Since version 2.{since} of the API." if since > 1 else ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.allow_abbrev = False
        for argument in self.declared.arguments:
            argument.add(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        return self.declared.run(self.app.nova, parsed_args)  # type: ignore[attr-defined]


class _Columns(_Declared):
    def _generate_columns_and_selector(self, parsed_args: argparse.Namespace, column_names: Sequence[str]) -> Any:
        try:
            return super()._generate_columns_and_selector(parsed_args, column_names)  # type: ignore[misc]
        except ValueError:
            raise UsageError(f"-c {' -c '.join(parsed_args.columns)}: no such column. "
                             f"The columns are {', '.join(column_names)}") from None


class _Listing(_Columns, lister.Lister):
    @property
    def formatter_default(self) -> str:
        return TEXT if self.declared.title else str(super().formatter_default)

    def _load_formatter_plugins(self) -> Any:
        return Formatters("list", self.declared.title)

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        rows = [tuple(shown(value, parsed_args.formatter) for value in row) for row in data]
        return super().produce_output(parsed_args, column_names, rows)


class _Showing(_Columns, show.ShowOne):
    def _load_formatter_plugins(self) -> Any:
        return Formatters("show")

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        answer = super().take_action(parsed_args)
        return tuple(answer), tuple(answer.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        values = tuple(shown(value, parsed_args.formatter) for value in data)
        return super().produce_output(parsed_args, column_names, values)


_KINDS: dict[str, type[_Declared]] = {"list": _Listing, "show": _Showing, "do": _Declared}


def parser_of(name: str, declared: Declared) -> argparse.ArgumentParser:
    """Return the argument parser of a command, for help and completion."""
    parser: argparse.ArgumentParser = _made(name, declared, None).get_parser(f"nova {name}")
    return parser


def run(name: str, declared: Declared, words: Sequence[str], nova: Nova, stdout: TextIO) -> int:
    """Parse the remaining arguments, run the command and print its result. Returns the exit code."""
    made = _made(name, declared, Terminal(nova, stdout))
    return int(made.run(made.get_parser(f"nova {name}").parse_args(list(words))) or 0)


def _made(name: str, declared: Declared, terminal: Any) -> Any:
    kind = type(f"_{name}", (_KINDS[declared.kind],), {"declared": declared})
    return kind(terminal, None, name)
