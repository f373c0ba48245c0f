"""Reports: the table of targets, the JSON file, and the comparison of two JSON files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Results omitted from comparisons: parts of other results, and circumstances of the measurement.
_DETAILS = re.compile(r"memory_mb|pss_mb|_mb\.|disturbance|_bytes$|\.boots$|servers$|watcher|listed|^seconds$"
                      r"|boots\.(1|10)\..*by_process|overload_answers|crowd|fair_rounds|^resizes$|^growth.*_p99")
# Cores used by foreign processes above which times are reported as unreliable.
_QUIET = 0.1


@dataclasses.dataclass(frozen=True)
class Target:
    """A row of the table: a result with its limit (a maximum, or a minimum if ``at_least``).

    ``upstream``: the value of upstream Nova, measured elsewhere. A target without a limit is only shown.
    """

    what: str
    find: Callable[[dict[str, Any]], Any]
    limit: float | None
    unit: str
    upstream: str = ""
    at_least: bool = False

    def met(self, value: float) -> bool:
        if self.limit is None:
            return True
        return value >= self.limit if self.at_least else value <= self.limit

    @property
    def wanted(self) -> str:
        """Return the limit as text."""
        return "" if self.limit is None else f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}".rstrip()


def _key(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda results: results.get(name)


def _part(name: str, part: str) -> Callable[[dict[str, Any]], Any]:
    return lambda results: results.get(name, {}).get(part)


def _most(name: str, *services: str) -> Callable[[dict[str, Any]], Any]:
    def find(results: dict[str, Any]) -> Any:
        values = [value for service, value in results.get(name, {}).items() if not services or service in services]
        return max(values, default=None)

    return find


TARGETS = (
    Target("boots/s, 20 clients, 100 virtual hosts", _key("boots_per_s"), 40, "/s", "3.5", at_least=True),
    Target("CPU per boot, all processes", _key("cpu_ms_per_boot"), 45, "ms", "470-650"),
    Target("bus messages per boot", _key("messages_per_boot"), 10, "", "27.5"),
    Target("SQL statements per boot", _key("statements_per_boot"), 30, "", "339"),
    Target("POST /servers p50, 10 clients", _key("post_p50_ms"), 60, "ms", "1400"),
    Target("GET /servers/{id} alone", _key("get_server_ms"), 6, "ms", "43"),
    Target("GET /servers/{id}, 8 clients", _key("get_server_rps"), 250, "/s", "40", at_least=True),
    Target("GET /servers/detail, 1000 servers", _key("list_1000_ms"), 120, "ms", "3800"),
    Target("select 1 of 10,000 hosts", _key("select_1_of_10000_ms"), 5, "ms", "4300"),
    Target("select 1,000 on 10,000 hosts", _key("select_1000_on_10000_ms"), 250, "ms"),
    Target("boot cost with 20,000 servers vs 1,000", _key("boot_cost_growth"), 1.2, "x", "grows"),
    *(Target(f"resident memory: {service} worker", _most("rss_mb", service), 80, "MB", "116-180")
      for service in ("api", "conductor", "scheduler", "compute")),
    *(Target(f"memory growth over the cycles: {service}", _most("cycles_growth_mb", service), 3, "MB")
      for service in ("api", "conductor", "scheduler", "compute")),
    *(Target(f"start until ready: {service}", _most("start_s", service), 1.5, "s", "2.2-2.9")
      for service in ("api", "conductor", "scheduler", "compute")),
    Target("boot during background load, worst", _key("fair_boot_s"), 1, "s"),
    Target("stop during background load, worst", _key("fair_stop_s"), 0.5, "s"),
    Target("responses in time, 4x load vs peak", _key("goodput_ratio"), 0.8, "x", at_least=True),
    Target("boot rate, 80 clients vs 20", _key("overload_boots_ratio"), 0.8, "x", at_least=True),
    Target("novad: deploy of one component", _key("novad_deploy_s"), 3, "s"),
    Target("novad: resident memory", _key("novad_rss_mb"), 60, "MB"),
    Target("novad: log lines to each of 10 readers", _key("novad_log_lines_per_s"), 1000, "/s", at_least=True),
    Target("novad: log lines that readers miss", _key("novad_log_lost"), 0, ""),
    Target("novad: deploy of the whole suite", _key("novad_suite_s"), 60, "s"),
    Target("federator: create to copy p50, 3 members", _part("federator", "p50_ms"), 30, "ms", "612 (1)"),
    Target("federator: create to copy p99", _part("federator", "p99_ms"), 250, "ms", "989 (1)"),
    Target("federator: CPU per placement, API server", _part("federator", "servers"), 20, "ms"),
    Target("federator: CPU per placement, scheduler", _part("federator", "scheduler"), 5, "ms", "86-115 (1)"),
    Target("federator: CPU per placement, agent", _part("federator", "agents"), 5, "ms"),
    Target("federator: rate of a burst vs prototype", _key("federator_burst_ratio"), 0.7, "x", at_least=True),
    Target("federator: CPU with many clusters vs 5", _key("federator_clusters_ratio"), 1.3, "x"),
    Target("federator: idle scheduler", _part("federator_many_clusters", "idle_scheduler_percent"), 5, "%"),
    Target("federator: memory of the scheduler", _part("federator_many_clusters", "scheduler_mb"), 300, "MB"),
    Target("federator: idle agent", _part("federator_many_clusters", "idle_agent_percent"), 1, "%"),
    Target("federator: memory of an agent", _part("federator", "agent_mb"), 60, "MB"),
    Target("federator: restart to first placement", _part("federator_many_clusters", "restart_s"), 15, "s"),
    Target("federator: policy edit, per object", _part("federator_many_clusters", "edit_scheduler_ms"), None, "ms"),
    Target("resizes, each confirmed, 20 clients", _key("resizes_per_s"), None, "/s"),
)


def table(results: dict[str, Any]) -> str:
    """Return the table of targets with measured values and verdicts. The count omits targets without a value."""
    lines = [f"{'measurement':42} {'target':>10} {'measured':>10}  {'':8} {'upstream':>9}"]
    met = measured = 0
    for target in TARGETS:
        value = target.find(results)
        verdict = "-"
        if value is not None and target.limit is not None:
            measured += 1
            met += target.met(value)
            verdict = "met" if target.met(value) else "NOT MET"
        shown = "-" if value is None else f"{value:.4g} {target.unit}".rstrip()
        lines.append(f"{target.what:42} {target.wanted:>10} {shown:>10}  "
                     f"{verdict:8} {target.upstream:>9}")
    lines.append(f"{met} of {measured} measured targets are met.")
    if "federator" in results:
        lines.append("(1) Karmada, as published: pull mode, other hardware; CPU of its controller manager.")
    if "yardstick_ms" in results:
        lines.append(f"The calibration loop took {results['yardstick_ms']:.2f} ms; times are proportional to it "
                     "(doc/performance.md).")
    foreign = results.get("foreign_cores", 0.0)
    if foreign > _QUIET:
        lines.append(f"The machine was not idle: foreign processes used {foreign:.1f} cores during the boots. "
                     "Counts are valid; rates, latencies and, to a lesser degree, CPU times are too pessimistic.")
    return "\n".join(lines)


# (heading, key) of the columns of results without targets; times in ms.
_Columns = Sequence[tuple[str, str]]
_BY_CLIENTS: _Columns = (
    ("boots/s", "boots_per_s"), ("deletes/s", "deletes_per_s"), ("CPU/boot", "cpu_ms_per_boot"),
    ("CPU/delete", "cpu_ms_per_delete"), ("POST p50", "post_p50_ms"), ("p99", "post_p99_ms"),
    ("ACTIVE p50", "active_p50_ms"), ("p99", "active_p99_ms"), ("gone p50", "gone_p50_ms"), ("p99", "gone_p99_ms"))
_BY_SERVERS: _Columns = (
    ("boots/s", "boots_per_s"), ("CPU/boot", "cpu_ms_per_boot"), ("POST p50", "post_p50_ms"),
    ("GET", "get_server_ms"), ("list 1000", "list_1000_ms"))
_BY_OPERATION: _Columns = (
    ("messages", "messages_per_{}"), ("statements", "statements_per_{}"), ("transactions", "transactions_per_{}"))
_BY_READ: _Columns = (("alone", "{}_ms"), ("p99", "{}_p99_ms"), ("/s at 8", "{}_rps"), ("CPU", "{}_cpu_ms"))
_BY_FAIRNESS: _Columns = (("alone s", "fair_{}_alone_s"), ("beside p50 s", "fair_{}_p50_s"), ("worst s", "fair_{}_s"))
_BY_PRICE: _Columns = (("us", "{}_us"), ("ms", "{}_ms"))
_PRICES = ("sign_300", "check_300", "sign_20000", "check_20000", "request", "rate_limits", "encrypt", "decrypt",
           "inspect", "search_text", "search_expression")
_BY_HOSTS: _Columns = (("select 1", "select_1_of_{}_ms"), ("select 1000", "select_1000_on_{}_ms"))


def details(results: dict[str, Any]) -> str:
    """Return tables of the results without targets: by clients, operation, read, hosts, price, fairness and servers."""
    blocks = [
        _block("clients", _BY_CLIENTS, results.get("boots", {})),
        _block("one", _BY_OPERATION, dict.fromkeys(("boot", "stop", "delete"), results)),
        _block("read", _BY_READ, dict.fromkeys(("get_server", "list_1000", "flavors"), results)),
        _block("hosts", _BY_HOSTS, dict.fromkeys((10, 1000, 10000), results)),
        _block("price", _BY_PRICE, dict.fromkeys(_PRICES, results)),
        _block("fairness", _BY_FAIRNESS, dict.fromkeys(("boot", "stop", "delete"), results)),
        _block("servers", _BY_SERVERS, {point["servers"]: point for point in results.get("growth", [])}),
    ]
    return "\n\n".join(block for block in blocks if block)


def _block(title: str, columns: _Columns, rows: Mapping[Any, dict[str, Any]]) -> str:
    """Return a table with the rows that have a value, or "" if none has."""
    lines = []
    for name, values in rows.items():
        row = [values.get(key.format(name)) for _heading, key in columns]
        if any(value is not None for value in row):
            lines.append(f"{name!s:18}" + "".join(f"{'-' if value is None else f'{value:.4g}':>14}" for value in row))
    return "\n".join([f"{title:18}" + "".join(f"{heading:>14}" for heading, _key in columns), *lines]) if lines else ""


def save(results: dict[str, Any], path: str) -> None:
    with open(path, "w") as file:
        json.dump(results, file, indent=1, sort_keys=True)
        file.write("\n")


def load(path: str) -> dict[str, Any]:
    with open(path) as file:
        loaded = json.load(file)
    if not isinstance(loaded, dict):
        raise ValueError("not a file written by --json")
    return loaded


def compare(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return a table of the numbers in both results, without details: before, now, and the ratio now / before."""
    before = dict(numbers(old))
    now = {name: value for name, value in numbers(new) if name.startswith("rss_mb.") or not _DETAILS.search(name)}
    width = max((len(name) for name in now if name in before), default=10)
    lines = [f"{'':{width}} {'before':>12} {'now':>12} {'ratio':>8}"]
    for name, value in now.items():
        if name in before:
            ratio = f"{value / before[name]:.2f}" if before[name] else "-"
            lines.append(f"{name:{width}} {before[name]:12.5g} {value:12.5g} {ratio:>8}")
    return "\n".join(lines)


def numbers(results: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (dotted name, number) of all results; points of growth are named by their number of servers."""
    for name, value in results.items():
        if isinstance(value, dict) and name != "environment" and not name.startswith("texts_"):
            yield from numbers(value, f"{prefix}{name}.")
        elif isinstance(value, list) and name == "growth":
            for point in value:
                yield from numbers(point, f"{prefix}{name}.{point['servers']}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
