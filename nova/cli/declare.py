"""Decorators that declare a function as a command, with its arguments and kind of result.

    @listing(arg("--all", action="store_true", help="of all projects"))
    def things(nova, args):
        '''List things.'''
        return ("ID", "Name"), [(thing["id"], thing["name"]) for thing in nova.get("/things")["things"]]

A ``listing`` function returns columns and rows, a ``showing`` function a mapping; a ``doing`` function prints. cliff is
imported when the command runs.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova.cli.client import NEWEST, Nova
from nova.cli.errors import UsageError

# arguments: the client (Nova or Novad), the parsed arguments
Function = Callable[[Any, argparse.Namespace], Any]


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument for argparse with its first minor microversion; ``alternatives`` are mutually exclusive arguments."""

    names: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    since: int = 1
    alternatives: tuple[Argument, ...] = ()

    def add(self, parser: Any) -> None:
        if self.alternatives:
            group = parser.add_mutually_exclusive_group()
            for alternative in self.alternatives:
                alternative.add(group)
            return
        options = dict(self.options)
        if self.since > 1:
            options["help"] = f"{options.get('help', '')} (since 2.{self.since})".strip()
        parser.add_argument(*self.names, **options)

    def check(self, args: argparse.Namespace, version: int) -> None:
        """Raise UsageError if the argument is given and the microversion does not support it."""
        for alternative in self.alternatives:
            alternative.check(args, version)
        if self.since > version and self.names:
            dest = self.options.get("dest") or self.names[-1].lstrip("-").replace("-", "_")
            if getattr(args, dest, None) not in (None, False, []):
                raise UsageError(f"{self.names[-1]} needs version 2.{self.since} of the API, but 2.{version} is "
                                 "selected (--os-compute-api-version; default: the newest of the server)")


@dataclasses.dataclass(frozen=True)
class Declared:
    """A command: its kind, its arguments and the first microversion that supports the command.

    ``title``: the heading of the text format (output.Text); a command with a title has this format by default.
    """

    kind: str
    arguments: tuple[Argument, ...]
    since: int
    function: Function
    title: str = ""

    @property
    def help(self) -> str:
        """Return the first line of the docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]

    def run(self, nova: Nova, args: argparse.Namespace) -> Any:
        """Call the function. Raises UsageError if the microversion lacks the command or an argument."""
        needed = [argument for argument in self.arguments if argument.since > 1 or argument.alternatives]
        if self.since > 1 or needed:
            version = nova.version
            if version < self.since:
                raise UsageError(f"The command needs version 2.{self.since} of the API, but 2.{version} is "
                                 "selected (--os-compute-api-version; default: the newest of the server)")
            for argument in needed:
                argument.check(args, version)
        return self.function(nova, args)


def arg(*names: str, since: int = 1, **options: Any) -> Argument:
    """Declare an argument with the options of ``ArgumentParser.add_argument``."""
    return Argument(names, options, since)


def flag(*names: str, since: int = 1, help: str) -> Argument:
    """Declare an option without a value."""
    return Argument(names, {"action": "store_true", "help": help}, since)


def pairs(*names: str, since: int = 1, help: str) -> Argument:
    """Declare a repeatable option with KEY=VALUE."""
    return Argument(names, {"action": "append", "default": [], "metavar": "KEY=VALUE", "type": pair, "help": help},
                    since)


def either(*alternatives: Argument) -> Argument:
    """Declare mutually exclusive arguments."""
    return Argument(alternatives=alternatives)


def pair(text: str) -> tuple[str, str]:
    """Split KEY=VALUE into (key, value). Raises ArgumentTypeError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def truth(text: str) -> bool:
    """Parse a boolean such as "yes" or "0". Raises ArgumentTypeError."""
    values = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without the values that are None."""
    return {name: value for name, value in values.items() if value is not None}


def table(columns: Mapping[str, str], resources: Iterable[Mapping[str, Any]]) -> Any:
    """Return the result of a ``listing`` command; ``columns``: the key of the value in each resource, by title."""
    return tuple(columns), [tuple(resource.get(key) for key in columns.values()) for resource in resources]


def _declare(kind: str, arguments: Sequence[Argument], since: int, title: str = "") -> Callable[[Function], Function]:
    def mark(function: Function) -> Function:
        function.declared = Declared(kind, tuple(arguments), since, function, title)  # type: ignore[attr-defined]
        return function

    return mark


def listing(*arguments: Argument, since: int = 1, title: str = "") -> Callable[[Function], Function]:
    """Declare a command that returns (columns, rows); ``title``: see Declared."""
    return _declare("list", arguments, since, title)


def showing(*arguments: Argument, since: int = 1) -> Callable[[Function], Function]:
    """Declare a command that returns the properties of a resource."""
    return _declare("show", arguments, since)


def doing(*arguments: Argument, since: int = 1) -> Callable[[Function], Function]:
    """Declare a command that prints its output. A returned number is the exit code."""
    return _declare("do", arguments, since)


SERVER = arg("server", metavar="SERVER", help="name or id of a server")
SERVERS = arg("servers", metavar="SERVER", nargs="+", help="names or ids of servers")
ALL_TENANTS = flag("--all-tenants", help="search the names of servers in all projects (administrators)")
__all__ = ["ALL_TENANTS", "NEWEST", "SERVER", "SERVERS", "Argument", "Declared", "arg", "doing", "either", "flag",
           "listing", "pair", "pairs", "showing", "table", "truth", "without_none"]
