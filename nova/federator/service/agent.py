"""The agent process: joins the control plane, then carries out schedules while it holds the heartbeat."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nova.common.errors import Invalid, ReportedError, os_error_text
from nova.federator.api.names import HEARTBEAT, cluster_namespace
from nova.federator.clusters.agent import Agent
from nova.federator.clusters.backpropagate import Backpropagator
from nova.federator.clusters.join import Credentials, remaining
from nova.federator.clusters.lease import Heartbeat
from nova.federator.clusters.report import Reporter
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig

LOG = logging.getLogger(__name__)
_RETRY = 10.0  # seconds after which a failed registration or renewal is repeated
_REFRESH = 60.0  # seconds between two checks of the authorities that the control plane publishes


async def run_agent(bootstrap: Kubeconfig, member_config: Kubeconfig, cluster: str, namespace: str,
                    metrics_address: str = "") -> None:
    """Run the agent of a cluster until cancelled. ``metrics_address``: host:port, or empty for none. Fenced workloads
    are guarded from the start, also while the control plane cannot be reached."""
    identity = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    async with Api(member_config, agent="nova-agent") as member, Api(bootstrap, agent="nova-agent") as nova:
        heartbeat = Heartbeat(nova, cluster, identity)
        agent = Agent(nova, member, cluster, heartbeat)
        credentials = Credentials(member, namespace, cluster)
        server = await _serve_metrics(metrics_address, AgentMetrics(agent)) if metrics_address else None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(agent.run_locally())
                config = await _join(credentials, bootstrap, nova)
                await nova.use(config)
                await heartbeat.acquire()
                LOG.info("Cluster %s: this agent has epoch %d", cluster, heartbeat.epoch)
                reporter = Reporter(nova, member, cluster, heartbeat.epoch, agent.applied_with_pods, agent.copies)
                backpropagator = Backpropagator(
                    nova, member, cluster, agent.copies,
                    lambda name: agent.informer.objects.get(f"{agent.namespace}/{name}"), lambda: heartbeat.held)
                for loop in (heartbeat.run(), agent.run(), reporter.run(), backpropagator.run(),
                             _renew(credentials, config, nova)):
                    tasks.create_task(loop)
        finally:
            if server:
                await server.cleanup()
            if heartbeat.renewed is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(heartbeat.release(), 5.0)


async def _join(credentials: Credentials, bootstrap: Kubeconfig, nova: Api) -> Kubeconfig:
    """Return accepted credentials: the stored ones, or new ones."""
    rejected = False
    while True:
        try:
            config = await credentials.obtain(bootstrap, ignore_stored=rejected)
            await nova.use(config)
            if not rejected and await _rejected(nova, credentials.cluster):
                LOG.warning("The control plane does not accept the stored credentials of cluster %s; joining again",
                            credentials.cluster)
                rejected = True
                continue
            return config
        except ReportedError as error:
            LOG.error("Cluster %s has not joined, next try in %.0f s: %s", credentials.cluster, _RETRY, error.message)
            await asyncio.sleep(_RETRY)


async def _rejected(nova: Api, cluster: str) -> bool:
    """Return True if the control plane answers that it does not accept the credentials."""
    try:
        await nova.get(f"/apis/coordination.k8s.io/v1/namespaces/{cluster_namespace(cluster)}/leases/{HEARTBEAT}")
    except ApiError as error:
        return error.status == 401
    return False


async def _renew(credentials: Credentials, config: Kubeconfig, nova: Api) -> None:
    """Renew the certificate whenever it is due or the control plane changes its authorities."""
    while True:
        await asyncio.sleep(min(remaining(config.certificate), _REFRESH))
        try:
            renewed = await credentials.refresh(config, nova)
            if renewed is not config:
                config = renewed
                await nova.use(config)
                LOG.info("Cluster %s: the certificate of its agent was renewed", credentials.cluster)
        except ReportedError as error:
            LOG.warning("The certificate was not renewed, next try in %.0f s: %s", _RETRY, error.message)
            await asyncio.sleep(_RETRY)


class AgentMetrics(Collector):
    """Metrics of an agent, read when they are requested."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def collect(self) -> Iterator[Metric]:
        agent, prefix = self.agent, "nova_federator_agent_"
        silence = agent.heartbeat.silence()
        for name, text, value in (
                ("schedules", "Schedules of this cluster.", len(agent.informer.objects)),
                ("copies", "Copies of objects in this cluster.", sum(1 for _copy in agent.copies)),
                ("queue_length", "Schedules that wait for a worker.", agent.pending),
                ("epoch", "Epoch of the lease.", agent.heartbeat.epoch),
                ("heartbeat_age_seconds", "Seconds since the last renewal of the lease.", silence)):
            yield GaugeMetricFamily(f"{prefix}{name}", text, value=value)
        for name, text, value in (
                ("status_writes", "Statuses of schedules that were written.", agent.reports),
                ("failures", "Failed tries of schedules.", agent.failures),
                ("fenced", "Copies that were stopped because the control plane was not reached.", agent.fence.stopped)):
            yield CounterMetricFamily(f"{prefix}{name}", text, value=value)
        requests = CounterMetricFamily(f"{prefix}requests", "Requests sent.", labels=("server", "method"))
        for place, counts in (("control-plane", agent.nova.counts), ("cluster", agent.member.counts)):
            for method, count in counts.items():
                requests.add_metric((place, method), count)
        yield requests


async def _serve_metrics(address: str, metrics: AgentMetrics) -> web.AppRunner:
    """Serve metrics over HTTP at host:port. Raises Invalid if the address cannot be used."""
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)

    async def show(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/metrics", show)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        parts = urlsplit(f"//{address}")
        await web.TCPSite(runner, parts.hostname, parts.port or 0).start()
    except (OSError, ValueError) as error:
        await runner.cleanup()
        text = os_error_text(error) if isinstance(error, OSError) else str(error)
        raise Invalid(f"--metrics-address: cannot listen on {address}: {text}.") from None
    LOG.info("Serving metrics at http://%s/metrics", address)
    return runner
