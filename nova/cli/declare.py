"""How a command is declared: a function with its arguments and its kind of answer, made into a command of cliff.

    @listing(arg("--all", action="store_true", help="also those of others"))
    def things(nova, args):
        '''List things.'''
        return ("ID", "Name"), [(one["id"], one["name"]) for one in nova.get("/things")["things"]]

``listing`` returns columns and rows, ``showing`` a mapping, ``doing`` nothing (it prints). Nothing is loaded of cliff
until the command is run.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova.cli.client import NEWEST, Nova
from nova.cli.errors import UsageError

# of the client that the command is for, and its arguments
Function = Callable[[Any, argparse.Namespace], Any]


@dataclasses.dataclass(frozen=True)
class Argument:
    """What argparse is given, and the minor microversion that has it; ``alternatives`` exclude one another."""

    names: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    since: int = 1
    alternatives: tuple[Argument, ...] = ()

    def add(self, parser: Any) -> None:
        if self.alternatives:
            group = parser.add_mutually_exclusive_group()
            for one in self.alternatives:
                one.add(group)
            return
        options = dict(self.options)
        if self.since > 1:
            options["help"] = f"{options.get('help', '')} (since 2.{self.since})".strip()
        parser.add_argument(*self.names, **options)

    def check(self, args: argparse.Namespace, version: int) -> None:
        """Raises UsageError if it was given, and this microversion does not have it."""
        for one in self.alternatives:
            one.check(args, version)
        if self.since > version and self.names:
            dest = self.options.get("dest") or self.names[-1].lstrip("-").replace("-", "_")
            if getattr(args, dest, None) not in (None, False, []):
                raise UsageError(f"{self.names[-1]} needs version 2.{self.since} of the API, and this is 2.{version} "
                                 "(--os-compute-api-version, or what the server knows)")


@dataclasses.dataclass(frozen=True)
class Declared:
    """A command: its kind, its arguments and the first microversion with it.

    ``title``: the heading of the text format (output.Text), which is the default format then.
    """

    kind: str
    arguments: tuple[Argument, ...]
    since: int
    function: Function
    title: str = ""

    @property
    def help(self) -> str:
        """The first line of what it says of itself."""
        return (self.function.__doc__ or "").strip().splitlines()[0]

    def run(self, nova: Nova, args: argparse.Namespace) -> Any:
        """The function's answer. Raises UsageError for what this microversion does not have."""
        needed = [argument for argument in self.arguments if argument.since > 1 or argument.alternatives]
        if self.since > 1 or needed:
            version = nova.version
            if version < self.since:
                raise UsageError(f"It needs version 2.{self.since} of the API, and this is 2.{version} "
                                 "(--os-compute-api-version, or what the server knows)")
            for argument in needed:
                argument.check(args, version)
        return self.function(nova, args)


def arg(*names: str, since: int = 1, **options: Any) -> Argument:
    """An argument, as argparse wants it."""
    return Argument(names, options, since)


def flag(*names: str, since: int = 1, help: str) -> Argument:
    """An option without a value."""
    return Argument(names, {"action": "store_true", "help": help}, since)


def pairs(*names: str, since: int = 1, help: str) -> Argument:
    """An option that is given once per KEY=VALUE."""
    return Argument(names, {"action": "append", "default": [], "metavar": "KEY=VALUE", "type": pair, "help": help},
                    since)


def either(*alternatives: Argument) -> Argument:
    """One of them at most."""
    return Argument(alternatives=alternatives)


def pair(text: str) -> tuple[str, str]:
    """(key, value) of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def truth(text: str) -> bool:
    """A boolean as users write it."""
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def _declare(kind: str, arguments: Sequence[Argument], since: int, title: str = "") -> Callable[[Function], Function]:
    def mark(function: Function) -> Function:
        function.declared = Declared(kind, tuple(arguments), since, function, title)  # type: ignore[attr-defined]
        return function

    return mark


def listing(*arguments: Argument, since: int = 1, title: str = "") -> Callable[[Function], Function]:
    """A command that returns (columns, rows); ``title``: see Declared."""
    return _declare("list", arguments, since, title)


def showing(*arguments: Argument, since: int = 1) -> Callable[[Function], Function]:
    """A command that returns the properties of one thing."""
    return _declare("show", arguments, since)


def doing(*arguments: Argument, since: int = 1) -> Callable[[Function], Function]:
    """A command that prints what it has to say; an exit code if it returns a number."""
    return _declare("do", arguments, since)


SERVER = arg("server", metavar="SERVER", help="name or id of a server")
SERVERS = arg("servers", metavar="SERVER", nargs="+", help="names or ids of servers")
ALL_TENANTS = flag("--all-tenants", help="look for names in all projects (administrators)")
__all__ = ["ALL_TENANTS", "NEWEST", "SERVER", "SERVERS", "Argument", "Declared", "arg", "doing", "either", "flag",
           "listing", "pair", "pairs", "showing", "truth"]
