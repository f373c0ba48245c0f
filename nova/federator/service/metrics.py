"""Metrics of the scheduler and of agents, computed when Prometheus requests them."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nova.federator.clusters.agent import Agent
from nova.federator.controllers.federation import Federation
from nova.federator.controllers.recovery import Recovery
from nova.federator.controllers.standby import Standby
from nova.federator.kube.client import Api
from nova.federator.service.duties import PLACEMENT, STATUSES, Duties
from nova.federator.service.listener import serve

LOG = logging.getLogger(__name__)
_CACHED = 1.0  # seconds for which computed metrics are sent again
_STATES = ("Ready", "Unreachable", "Suspending", "Suspended", "Waking", "Failed")


class _Metrics(Collector):
    """Metrics whose values a function returns."""

    def __init__(self, metrics: Callable[[], Iterator[Metric]]) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self.metrics()


@contextlib.asynccontextmanager
async def serve_metrics(address: str, metrics: Callable[[], Iterator[Metric]]) -> AsyncIterator[None]:
    """Serve metrics over HTTP. ``address``: host:port, or empty to serve none. Raises Invalid if it cannot be used."""
    if not address:
        yield
        return
    registry = CollectorRegistry()
    registry.register(_Metrics(metrics))
    ProcessCollector(registry=registry)
    content, computed = b"", float("-inf")

    async def show(_request: web.Request) -> web.Response:
        nonlocal content, computed
        if time.monotonic() - computed >= _CACHED:
            content, computed = generate_latest(registry), time.monotonic()
        return web.Response(body=content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async with serve(address, "--metrics-address", [web.get("/metrics", show)]):
        LOG.info("Serving metrics at http://%s/metrics", address)
        yield


def agent_metrics(agent: Agent) -> Iterator[Metric]:
    """Yield the metrics of an agent."""
    prefix = "nova_federator_agent_"
    for name, text, value in (
            ("schedules", "Schedules of this cluster.", len(agent.informer.objects)),
            ("copies", "Copies of objects in this cluster.", sum(1 for _copy in agent.copies)),
            ("unscheduled", "Schedules that do not exist, but have copies.", len(agent.unscheduled())),
            ("queue_length", "Schedules that wait for a worker.", agent.pending),
            ("epoch", "Epoch of the lease.", agent.heartbeat.epoch),
            ("heartbeat_age_seconds", "Seconds since the last renewal of the lease.", agent.heartbeat.silence())):
        yield GaugeMetricFamily(f"{prefix}{name}", text, value=value)
    for name, text, value in (
            ("status_writes", "Statuses of schedules that were written.", agent.reports),
            ("failures", "Failed tries of schedules.", agent.failures),
            ("fenced", "Copies that were stopped because the control plane was not reached.", agent.fence.stopped)):
        yield CounterMetricFamily(f"{prefix}{name}", text, value=value)
    yield _requests(f"{prefix}requests", {"control-plane": agent.nova, "cluster": agent.member})


def scheduler_metrics(federation: Federation, duties: Duties, standby: Standby, recovery: Recovery) -> Iterator[Metric]:
    """Yield the metrics of a scheduler. The queues of duties that another replica performs count as empty."""
    prefix, placer, clusters = "nova_federator_scheduler_", federation.placer, federation.clusters
    performed = {duty: int(duties.validity(duty) > 0) for duty in duties.duties}
    yield _by_label(f"{prefix}duty", "1 if this replica performs the duty.", "duty", performed)
    states = Counter(record.phase if (record := clusters.records.get(name)) else
                     "Ready" if clusters.reachable(name) else "Unreachable" for name in clusters.names())
    yield _by_label(f"{prefix}clusters", "Clusters by state.", "state", {state: states[state] for state in _STATES})
    yield _by_label(f"{prefix}recovery_runs", "Stored runs of recovery plans by phase.", "phase", Counter(
        str((run.get("status") or {}).get("phase") or "Pending") for run in recovery.runs.objects.values()))
    yield _by_label(f"{prefix}queue_length", "Keys that wait for a worker.", "queue",
                    {"placement": placer.queue_length * performed[PLACEMENT],
                     "statuses": federation.statuses.queue_length * performed[STATUSES]})
    for name, text, value in (
            ("objects", "Objects that policies or annotations select.", len(federation.catalog.placements)),
            ("schedules", "Stored schedules.", len(federation.stored.objects)),
            ("groups_unplaced", "Groups that run nowhere and that no cluster can take.", len(placer.unplaced)),
            ("standby_failing", "Clusters whose last step into or out of standby failed.", standby.failing),
            ("recovery_waiting", "Alerts and runs that failed and are tried again.", len(recovery.failures))):
        yield GaugeMetricFamily(f"{prefix}{name}", text, value=value)
    for name, text, value in (
            ("decisions", "Processed groups.", placer.processed),
            ("failures", "Failed tries of groups.", placer.failed),
            ("status_writes", "Statuses of objects that were written.", federation.statuses.writes),
            ("events_dropped", "Events that were not written, because too many waited.", federation.recorder.dropped)):
        yield CounterMetricFamily(f"{prefix}{name}", text, value=value)
    yield _requests(f"{prefix}requests", {"control-plane": federation.api})


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family


def _requests(name: str, clients: Mapping[str, Api]) -> Metric:
    family = CounterMetricFamily(name, "Requests sent.", labels=("server", "method"))
    for server, api in clients.items():
        for method, count in api.counts.items():
            family.add_metric((server, method), count)
    return family
