"""Benchmarks of Nova as separate processes on a real RabbitMQ and a real database; see doc/performance.md.

    python -m tools.bench --quick
    python -m tools.bench --database mariadb --json now.json --compare before.json --plot growth.png
    python -m tools.bench --only boots,reads
    python -m tools.bench --only million
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.bench.amounts import Amounts
    from tools.bench.world import World

PARTS = ("starts", "boots", "counts", "cycles", "overload", "reads", "memory", "growth", "resizes", "fairness",
         "selects", "prices", "novad", "federator")
# Parts that take most of an hour and run only if requested with --only.
_ON_REQUEST = ("million",)
# Parts that need a separate suite (two hosts for moves; discarded with its pending operations), and parts without
# a suite.
_TWO_HOSTS, _NONE = ("resizes", "fairness"), ("selects", "prices", "novad", "federator", *_ON_REQUEST)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    _prepare()
    from tools.bench import report
    from tools.bench.amounts import FULL, QUICK

    results: dict[str, Any] = {}
    failure = _measure_safely(options, QUICK if options.quick else FULL, results)
    print(f"\n{report.details(results)}\n\n{report.table(results)}")
    if options.compare:
        print(f"\n{report.compare(options.compare, results)}")
    if options.json:
        report.save(results, options.json)
    if options.plot and results.get("growth"):
        _plot(results["growth"], options.plot)
    if failure:
        print(f"\nEnded early: {failure}", file=sys.stderr)
    return 1 if failure else 0


def _plot(points: list[dict[str, Any]], path: str) -> None:
    try:
        from tools.bench import plot
        plot.save(points, path)
    except ImportError as error:
        print(f"\nNo plot of growth: {error}. The plot needs the extra 'bench'.")
    else:
        print(f"\nPlot of the growth of costs: {path}")


def _prepare() -> None:
    """Prepare the process before any module of Nova is imported or any service is started."""
    # Keep compiled modules, as in an installed Nova: otherwise every start compiles them again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # On SIGTERM, unwind the context managers that stop the started servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Selects the threading back end of the oslo libraries; must precede their other imports.
    import nova.bus  # noqa: F401


def _measure_safely(options: argparse.Namespace, amounts: Amounts, results: dict[str, Any]) -> str:
    """Run the benchmarks; return the reason of an early end or "". ``results`` has the measurements until then."""
    import pytest

    from tools.bench.load import Unexpected
    try:
        measure(options, amounts, results)
    except (Unexpected, AssertionError, OSError, pytest.fail.Exception, pytest.skip.Exception) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def measure(options: argparse.Namespace, amounts: Amounts, results: dict[str, Any]) -> None:
    """Run the selected parts; store the measurements in ``results`` under the names of the JSON file."""
    from tools.bench.cpu import Calibration

    began = time.monotonic()

    def part(name: str) -> bool:
        if name in options.only:
            print(f"{name} ({time.monotonic() - began:.0f} s)", flush=True)
        return name in options.only

    with Calibration() as machine:
        _measure_parts(options, amounts, results, part)
    results["yardstick_ms"] = round(machine.ms, 4)
    results["seconds"] = round(time.monotonic() - began, 1)


def _measure_parts(options: argparse.Namespace, amounts: Amounts, results: dict[str, Any],
                   part: Callable[[str], bool]) -> None:
    from tools.bench import fairness, federator, million, novad, prices, resizes, selects, world

    if set(options.only) - {*_TWO_HOSTS, *_NONE}:
        with world.start(_setup(options)) as running:
            results["environment"] = running.environment()
            _measure_running(running, amounts, results, part)
            # Audit the records of copied and booted servers.
            running.nova.audit()
    if set(options.only) & set(_TWO_HOSTS):
        with world.start(dataclasses.replace(_setup(options), computes=2)) as running:
            results.setdefault("environment", running.environment())
            if part("resizes"):
                results |= resizes.measure(running, amounts)
                running.nova.audit()
            if part("fairness"):
                results |= fairness.measure(running, amounts)
    if part("selects"):
        results |= selects.measure(amounts)
    if part("prices"):
        results |= prices.measure(amounts)
    if part("novad"):
        results |= novad.measure(amounts)
    if part("federator"):
        results |= federator.measure(amounts)
    if part("million"):
        results |= million.measure(_setup(options), amounts)


def _measure_running(running: World, amounts: Amounts, results: dict[str, Any], part: Callable[[str], bool]) -> None:
    from tools.bench import boots, counts, cycles, growth, overload, reads, starts
    from tools.bench.fill import fill

    if part("starts"):
        results |= starts.measure(running, amounts)
    if part("boots"):
        results |= boots.measure(running, amounts)
        results["rss_after_boots_mb"] = starts.memories(running, "after the boots")["rss_mb"]
    if part("counts"):
        results |= counts.measure(running, amounts)
    if part("cycles"):
        results |= cycles.measure(running, amounts)
    if part("overload"):
        results |= overload.measure(running, amounts)
    if part("reads"):
        fill(running, amounts.listed)
        results |= reads.measure(running, amounts)
    if part("memory"):
        boots.boot_and_delete(running, 20, amounts.growth_boots)
        results |= starts.memories(running, "after the above")
    if part("growth"):
        results |= growth.measure(running, amounts)


def _setup(options: argparse.Namespace) -> Any:
    from tools.bench.world import Setup
    return Setup(
        database=options.database, api_workers=options.api_workers, conductor_workers=options.conductor_workers,
        scheduler_workers=options.scheduler_workers, nodes=options.nodes, networks=options.networks,
        durable=not options.no_fsync)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "mariadb"], default="postgresql")
    parser.add_argument("--quick", action="store_true", help="smaller amounts; completes within five minutes")
    parser.add_argument("--only", metavar="PART,...", default=",".join(PARTS),
                        help=f"parts to run: {', '.join((*PARTS, *_ON_REQUEST))}")
    parser.add_argument("--api-workers", type=int, default=2, metavar="N")
    parser.add_argument("--conductor-workers", type=int, default=2, metavar="N")
    parser.add_argument("--scheduler-workers", type=int, default=1, metavar="N")
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="virtual hosts of the nova-compute")
    parser.add_argument("--networks", choices=["none", "auto"], default="none", help="networks of the servers")
    parser.add_argument("--no-fsync", action="store_true", help="disable fsync of the database")
    parser.add_argument("--json", metavar="FILE", help="file for all results")
    parser.add_argument("--plot", metavar="FILE", default="bench-growth.png",
                        help="file for a plot (PNG) of the growth of costs; default: %(default)s; '': no plot")
    parser.add_argument("--compare", metavar="OLD.json", type=_earlier, help="print the ratios to an earlier --json")
    options = parser.parse_args(argv)
    options.only = options.only.split(",")
    unknown = set(options.only) - {*PARTS, *_ON_REQUEST}
    if unknown:
        parser.error(f"--only: no such part: {', '.join(sorted(unknown))}")
    return options


def _earlier(path: str) -> dict[str, Any]:
    from tools.bench import report
    try:
        return report.load(path)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
