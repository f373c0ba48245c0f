"""The command nova-federator: the scheduler of the federator, or the agent of a workload cluster."""

import argparse
import asyncio
import contextlib
import functools
import gc
import logging
import os
import pathlib
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from nova import __version__
from nova.common.errors import ReportedError

# Thresholds of the garbage collector. With the default of 700 new objects, a process that stores a hundred thousand
# objects examines them all the time.
_GENERATION_0, _GENERATION_1, _GENERATION_2 = 4_000, 10, 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run a role until SIGTERM or SIGINT. Return 0 after a signal, 1 if the role cannot run. Raises SystemExit(2)
    for bad usage."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.INFO, stream=sys.stderr,
                        format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return asyncio.run(_run(options.role(options)))
    except ReportedError as error:
        print(f"nova-federator: {error.message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nova-federator", description="Run a process of the federator.")
    parser.add_argument("--version", action="version", version=f"nova-federator {__version__}")
    roles = parser.add_subparsers(required=True, metavar="ROLE")
    scheduler = roles.add_parser("scheduler", help="place workloads on clusters")
    scheduler.add_argument("--kubeconfig", type=pathlib.Path,
                           help="kubeconfig of the control plane (default: $KUBECONFIG)")
    scheduler.add_argument("--ca-cert", type=pathlib.Path, help="CA certificate that signs agents' certificates")
    scheduler.add_argument("--ca-key", type=pathlib.Path, help="key of --ca-cert (default: no cluster can join)")
    scheduler.add_argument("--hosting-kubeconfig", type=pathlib.Path,
                           help="kubeconfig of the hosting cluster (default: the pod's service account, if any)")
    scheduler.add_argument("--hosting-namespace", default=os.environ.get("POD_NAMESPACE") or "elotl",
                           help="namespace of the control plane in the hosting cluster (default: $POD_NAMESPACE)")
    scheduler.add_argument("--alerts-address", default="", metavar="HOST:PORT",
                           help="receive alerts of Alertmanager at this address (default: receive no alerts)")
    scheduler.add_argument("--alerts-token-file", type=pathlib.Path,
                           help="file with the bearer token that senders of alerts present; required for alerts")
    scheduler.add_argument("--alerts-cert", type=pathlib.Path,
                           help="TLS certificate (PEM) that the alert receiver presents (default: plain HTTP)")
    scheduler.add_argument("--alerts-key", type=pathlib.Path, help="private key of --alerts-cert")
    scheduler.set_defaults(role=_scheduler)
    agent = roles.add_parser("agent", help="apply placements in a workload cluster")
    agent.add_argument("--cluster-name", required=True, help="name of this cluster in the control plane")
    agent.add_argument("--control-plane-kubeconfig", type=pathlib.Path, required=True,
                       help="kubeconfig with a bootstrap token of the control plane")
    agent.add_argument("--kubeconfig", type=pathlib.Path,
                       help="kubeconfig of the workload cluster (default: the service account of the pod)")
    agent.add_argument("--namespace", default="elotl",
                       help="namespace of the agent in the workload cluster (default: %(default)s)")
    agent.set_defaults(role=_agent)
    for role in (scheduler, agent):
        role.add_argument("--metrics-address", default=os.environ.get("NOVA_METRICS_ADDRESS", ""), metavar="HOST:PORT",
                          help="address of Prometheus metrics (default: $NOVA_METRICS_ADDRESS; empty: no metrics)")
        role.add_argument("-v", "--verbose", action="store_true", help="log debug messages")
    return parser


def _tune_collector() -> None:
    """Collect garbage rarely, and never among the imported objects. Call it after all imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GENERATION_0, _GENERATION_1, _GENERATION_2)


async def _scheduler(options: argparse.Namespace) -> None:
    from nova.federator.api import tracing
    from nova.federator.controllers.signing import Authority
    from nova.federator.kube.client import Api
    from nova.federator.kube.config import in_cluster, load
    from nova.federator.service.alerts import AlertReceiver
    from nova.federator.service.hosting import Hosting
    from nova.federator.service.scheduler import Scheduler

    _tune_collector()
    authority = None
    if options.ca_key:
        if not options.ca_cert:
            raise ReportedError("--ca-key needs --ca-cert.")
        authority = functools.partial(Authority.load, options.ca_cert, options.ca_key)
        authority()  # report an unreadable file before the scheduler starts
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(tracing.start("nova-scheduler"))
        login = functools.partial(load, [options.kubeconfig] if options.kubeconfig else None)
        api = await stack.enter_async_context(Api(login(), agent="nova-scheduler", reload=login))
        hosting = None
        if options.hosting_kubeconfig or os.environ.get("KUBERNETES_SERVICE_HOST"):
            host = functools.partial(load, [options.hosting_kubeconfig]) if options.hosting_kubeconfig else in_cluster
            cluster = await stack.enter_async_context(Api(host(), agent="nova-scheduler", reload=host))
            hosting = Hosting(cluster, api, options.hosting_namespace)
        alerts = None
        if options.alerts_address:
            alerts = AlertReceiver(api, options.alerts_address, options.alerts_token_file, options.alerts_cert,
                                   options.alerts_key)
        await Scheduler(api, authority, hosting, alerts=alerts, environment=os.environ,
                        metrics_address=options.metrics_address).run()


async def _agent(options: argparse.Namespace) -> None:
    from nova.federator.api import tracing
    from nova.federator.kube.config import in_cluster, load
    from nova.federator.service.agent import run_agent

    _tune_collector()
    member = functools.partial(load, [options.kubeconfig]) if options.kubeconfig else in_cluster
    with contextlib.ExitStack() as stack:
        stack.callback(tracing.start("nova-agent"))
        await run_agent(lambda: load([options.control_plane_kubeconfig]), member, options.cluster_name,
                        options.namespace, options.metrics_address)


async def _run(role: Coroutine[Any, Any, None]) -> int:
    """Run a role until a signal. Return 0 after a signal, 1 if the role ended by itself."""
    task = asyncio.ensure_future(role)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    except ExceptionGroup as group:
        for error in group.exceptions:
            logging.getLogger("nova.federator").error("nova-federator stops after an error: %s", error)
    return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
