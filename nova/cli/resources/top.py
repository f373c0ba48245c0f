"""The top command: the status page in a terminal."""

import argparse
import datetime
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova.cli.client import Nova
from nova.cli.declare import arg, doing, flag
from nova.cli.errors import CommandError, Refused

Document = Mapping[str, Any]

_UNITS = {"VCPU": ("VCPU", ""), "MEMORY_MB": ("memory", " MiB"), "DISK_GB": ("disk", " GiB")}
# Escape sequences: move the cursor home and clear the screen; clear the rest of the screen.
_HOME, _REST = "\033[H\033[2J", "\033[J"
# Rows per table if the height of the screen is unknown.
_ROWS = 20


@doing(flag("--once", help="print the page once, even to a terminal"),
       arg("--interval", metavar="SECONDS", type=float, default=3.0, help="refresh interval (default: 3)"))
def top(nova: Nova, args: argparse.Namespace) -> int:
    """Show hosts, capacity, running operations and recent failures, refreshed periodically (administrators)."""
    live = sys.stdout.isatty() and not args.once
    while True:
        try:
            overview = nova.overview()
        except Refused as error:
            if error.status != 404:
                raise
            raise CommandError("This cloud serves no status page: [api]status_page of its nova-api is disabled."
                               ) from error
        size = shutil.get_terminal_size((160, 0))
        # Three tables share the lines below the header and captions.
        rows = max(3, (size.lines - 14) // 3) if live and size.lines else _ROWS
        text = "\n".join(line[:size.columns] for line in _lines(overview, rows))
        print(f"{_HOME}{text}{_REST}" if live else text, flush=True)
        if not live:
            return 0
        time.sleep(max(0.5, args.interval))


def _lines(overview: Document, rows: int) -> Iterator[str]:
    yield f"Nova at {_time(overview['at']):%H:%M:%S}   {overview['servers']} servers   {overview['node_count']} nodes"
    yield "   ".join(f"{label} {_amount(overview['capacity'].get(name), unit)}"
                     for name, (label, unit) in _UNITS.items() if name in overview["capacity"])
    yield "   ".join(f"{service['binary']} {service['up']} up"
                     + (f", {service['down']} DOWN" if service["down"] else "") for service in overview["services"])
    at = _time(overview["at"])
    yield from _table(f"In progress: {overview['unfinished']}", ("SINCE", "SERVER", "OPERATION", "STEP", "WAITS FOR"), [
        (_ago(operation["since"], at), _server(operation), operation["operation"], operation.get("step") or "",
         _waits(operation))
        for operation in overview["operations"][:rows]])
    yield from _table("Recent failures", ("AGO", "SERVER", "OPERATION", "WHY"), [
        (_ago(failure.get("at"), at), _server(failure), failure["operation"], failure.get("message") or "")
        for failure in overview["failures"][:rows]])
    yield from _table("Hosts", ("HOST", "STATE", "SERVERS", "IN PROGRESS", "VCPU", "MEMORY", "DISK"), [
        (node["host"], _state(node), str(node["servers"]), str(node["under_way"]),
         *(_amount(node.get("capacity", {}).get(name), unit) for name, (_label, unit) in _UNITS.items()))
        for node in overview["nodes"][:rows]])


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield caption
    if not rows:
        yield "  nothing"
        return
    # Failure messages come from hosts: escape control characters, which the terminal would interpret.
    clean = [[cell if cell.isprintable() else ascii(cell)[1:-1] for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in [head, *clean]) for index in range(len(head))]
    for row in [head, *clean]:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _waits(operation: Document) -> str:
    owner = (operation.get("owner") or "").partition("@")[2].partition(":")[0]
    state = str(operation["state"])
    return {"queued": f"{operation.get('behind') or 'another operation'} of the same server",
            "waiting": ", ".join(operation.get("events", [])) or "a free thread", "host": f"host {owner}",
            "conductor": f"conductor {owner}", "overdue": f"its lost owner {owner}"}.get(state, state)


def _state(node: Document) -> str:
    if node["forced_down"]:
        return "FORCED DOWN"
    if not node["up"]:
        return "DOWN"
    if node["disabled"]:
        return f"disabled: {node['reason']}" if node.get("reason") else "disabled"
    return "up"


def _server(operation: Document) -> str:
    return str(operation.get("server_name") or operation["server_uuid"])


def _amount(capacity: Document | None, unit: str) -> str:
    return f"{capacity['used']} of {capacity['total']}{unit}" if capacity else ""


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _ago(text: str | None, at: datetime.datetime) -> str:
    if text is None:
        return ""
    seconds = max(0, int((at - _time(text)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
