"""Results of the scale benchmark: a JSON file, rewritten after each result, and the same data as tables."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any


class Report:
    """``report.json`` and ``report.md`` in a directory."""

    def __init__(self, directory: pathlib.Path, about: dict[str, Any]) -> None:
        self._directory = directory
        self.values: dict[str, Any] = {"about": about}
        directory.mkdir(parents=True, exist_ok=True)

    def note(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.write()

    def write(self) -> None:
        for name, text in (("report.json", json.dumps(self.values, indent=1) + "\n"), ("report.md", self.markdown())):
            new = self._directory / f"{name}.new"
            new.write_text(text)
            os.replace(new, self._directory / name)

    def markdown(self) -> str:
        about = self.values["about"]
        parts = [f"`{about['command']}` on {about['machine']}: {self.values.get('ended', 'unfinished')}\n",
                 _table(("what", "value"), self._facts())]
        tenths = self.values.get("tenths")
        if tenths:
            parts.append(_table(("servers", "boots/s", "of batches", "alone p50 ms", "CPU ms/boot", "messages", "SQL",
                                 "select 1 ms", "select batch ms (of)", "page of 1000 ms", "GET ms", "database MiB"),
                                [(row["servers"], row.get("boots_per_s"), row.get("batch_boots_per_s"),
                                  row["boot_alone_p50_ms"], row.get("cpu_ms_per_boot_all"),
                                  row.get("messages_per_boot"), row.get("statements_per_boot"),
                                  row["select_one_p50_ms"], _select(row), row["list_page_ms"],
                                  row["get_ms"], row["database_mb"]) for row in tenths]))
            services = list(tenths[-1]["rss_mb"])
            parts.append(_table(("servers", *(f"{name} MiB" for name in services)),
                                [(row["servers"], *(row["rss_mb"].get(name) for name in services)) for row in tenths]))
        deletes = self.values.get("deletes")
        if deletes:
            parts.append(_table(("deleted", "deletes/s", "CPU ms/delete", "messages", "SQL", "database MiB"),
                                [(row["deleted"], row["deletes_per_s"], row["cpu_ms_per_delete_all"],
                                  row["messages_per_delete"], row["statements_per_delete"], row["database_mb"])
                                 for row in deletes]))
        return "\n".join(parts)

    def _facts(self) -> list[tuple[str, Any]]:
        """Return single values; nested ones with dotted names."""
        left_out = {"about", "scenario", "tenths", "deletes", "ended"}
        return [(name, value) for top in self.values if top not in left_out
                for name, value in _flat(top, self.values[top])]


def _select(row: dict[str, Any]) -> str:
    return f"{row['select_batch_p50_ms']:g} ({row['select_batch']})" if row["select_batch"] else ""


def _flat(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        if all(not isinstance(item, dict) for item in value.values()):
            yield name, ", ".join(f"{key} {item}" for key, item in value.items() if item != "")
            return
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    else:
        yield name, value


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")
