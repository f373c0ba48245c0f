"""A cloud of thousands of nodes on one machine: ``python -m tools.bench.scale --hosts 10000 --instances 100000``.

Starts a private RabbitMQ and PostgreSQL, an API, two conductors, a scheduler and one nova-compute that simulates the
whole fleet. Registers the fleet, fills it over the REST API, lists, schedules and deletes servers, and reports the
times and their growth. Results are written after every step (--output) and remain after an interruption. Needs root
and the Debian packages of both servers. Doc: doc/scale.md.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import time

from tools.bench.load import Unexpected
from tools.bench.scale.report import Report
from tools.bench.scale.steps import Steps
from tools.bench.scale.world import machine, scenario, start


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m tools.bench.scale", description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--hosts", type=int, default=10000, help="nodes of the fleet (default: %(default)s)")
    arguments.add_argument("--services", type=int, default=100,
                       help="service hosts that the nodes are on, all in one nova-compute (default: %(default)s)")
    arguments.add_argument("--instances", type=int, default=100000, help="servers to create (default: %(default)s)")
    arguments.add_argument("--batch", type=int, default=1000, help="servers of one request (default: %(default)s)")
    arguments.add_argument("--singles", type=int, default=100,
                       help="servers of each tenth that are created one by one (default: %(default)s)")
    arguments.add_argument("--deletes", type=int, help="number of servers to delete (default: all)")
    arguments.add_argument("--idle", type=float, default=60.0,
                       help="seconds of the measurement of the idle fleet (default: %(default)s)")
    arguments.add_argument("--network", metavar="CIDR", help="network in which every server gets an address")
    arguments.add_argument("--time-limit", type=float, default=7200.0,
                       help="seconds after which no step starts; two thirds of them are for creating servers "
                            "(default: %(default)s)")
    arguments.add_argument("--output", default="scale-report", metavar="DIRECTORY",
                       help="directory of report.json and report.md (default: ./%(default)s)")
    return arguments


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.hosts < 1 or args.instances < 10 or not 1 <= args.services <= args.hosts:
        parser().error("--hosts and --services must be at least 1, --services at most --hosts, --instances at least 10")
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    report = Report(pathlib.Path(args.output), {
        "machine": machine(), "hosts": args.hosts, "services": args.services,
        "instances": args.instances, "batch": args.batch, "network": args.network,
        "command": f"python -m tools.bench.scale {' '.join(sys.argv[1:] if argv is None else argv)}",
        "load_average_at_start": round(os.getloadavg()[0], 2)})
    try:
        _run(args, report)
    except KeyboardInterrupt:
        report.note("ended", "interrupted")
        return 130
    except Unexpected as error:
        report.note("ended", str(error))
        return 1
    finally:
        report.write()
        print(report.markdown())
    return 0


def _run(args: argparse.Namespace, report: Report) -> None:
    began = time.monotonic()
    fleet = scenario(args.hosts, args.services)
    report.note("scenario", fleet)
    with start(fleet, args.network) as world:
        steps = Steps(world, report, args, began + args.time_limit)
        steps.register(fleet)
        steps.idle("idle_empty", args.idle)
        steps.fill(until=began + args.time_limit * 2 / 3)
        steps.idle("idle_full", args.idle)
        steps.lists()
        steps.restarts()
        steps.audit()
        steps.delete(args.deletes)
        steps.audit()
    report.note("ended", "complete")
    report.note("seconds", round(time.monotonic() - began))


if __name__ == "__main__":
    sys.exit(main())
