"""Output formats: tables as python-novaclient draws them, JSON and YAML documents with unchanged values."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from cliff.formatters import base, commaseparated, json_format, shell, table, value

# The name of the format of class Text.
TEXT = "text"
# Formats that keep numbers, lists and null.
DOCUMENTS = ("json", "yaml")


class Table(table.TableFormatter):
    """A table with left-aligned columns: empty lists have no rows, single resources have Property and Value columns."""

    def emit_list(self, column_names: Sequence[str], data: Iterable[Sequence[Any]], stdout: TextIO,
                  parsed_args: argparse.Namespace) -> None:
        parsed_args.print_empty = True
        super().emit_list(column_names, list(data), stdout, parsed_args)

    def emit_one(self, column_names: Sequence[str], data: Sequence[Any], stdout: TextIO,
                 parsed_args: argparse.Namespace) -> None:
        self.emit_list(("Property", "Value"), list(zip(column_names, data, strict=True)), stdout, parsed_args)


class Text(base.ListFormatter):
    """A title and an item per row: "- Name: fusion", then a line per further column. Empty values are omitted."""

    def __init__(self, title: str) -> None:
        self._title = title

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add no options: the format has none."""

    def emit_list(self, column_names: Sequence[str], data: Iterable[Sequence[Any]], stdout: TextIO,
                  parsed_args: argparse.Namespace) -> None:
        print(self._title, file=stdout)
        for row in data:
            lines = [f"{name}: {text}" for name, text in zip(column_names, row, strict=True) if text]
            for number, line in enumerate(lines):
                print(f"{'    ' if number else '  - '}{line}", file=stdout)


class _Plugin:
    """A formatter with the interface of a stevedore extension; the YAML formatter is imported on first use."""

    def __init__(self, name: str, made: Any = None) -> None:
        self.name = name
        self._made = made

    @property
    def obj(self) -> Any:
        if self._made is None:
            from cliff.formatters import yaml_format

            self._made = yaml_format.YAMLFormatter()
        return self._made


class Formatters:
    """The output formats of a command, without the plug-in search of stevedore."""

    def __init__(self, kind: str, title: str = "") -> None:
        chosen: dict[str, Any] = {"table": Table(), "json": json_format.JSONFormatter(), "yaml": None,
                                  "value": value.ValueFormatter()}
        if kind == "list":
            chosen["csv"] = commaseparated.CSVLister()
            if title:
                chosen[TEXT] = Text(title)
        else:
            chosen["shell"] = shell.ShellFormatter()
        self._plugins = {name: _Plugin(name, made) for name, made in chosen.items()}

    def names(self) -> list[str]:
        return list(self._plugins)

    def __getitem__(self, name: str) -> _Plugin:
        return self._plugins[name]

    def __iter__(self) -> Iterator[_Plugin]:
        return iter(plugin for name, plugin in self._plugins.items() if name != "yaml")  # YAML has no options


def text(value: Any) -> str:
    """Format a value for a table."""
    if value is None:
        return "-"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    return str(value)


def shown(value: Any, format_name: str) -> Any:
    """Convert a value for the output format: documents keep its type, other formats get text."""
    return value if format_name in DOCUMENTS else text(value)
