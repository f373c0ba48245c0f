"""The agent process: joins the control plane, then carries out schedules while it holds the Lease of its cluster."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

from nova.common.errors import ReportedError
from nova.federator.api.names import HEARTBEAT, cluster_namespace
from nova.federator.clusters.agent import Agent
from nova.federator.clusters.backpropagate import Backpropagator
from nova.federator.clusters.join import Credentials, remaining
from nova.federator.clusters.lease import Heartbeat
from nova.federator.clusters.report import Reporter
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig
from nova.federator.service.metrics import agent_metrics, serve_metrics

LOG = logging.getLogger(__name__)
_RETRY = 10.0  # seconds after which a failed registration or renewal is repeated
_REFRESH = 60.0  # seconds between two checks for new certificate authorities that the control plane publishes


async def run_agent(bootstrap: Callable[[], Kubeconfig], member_config: Callable[[], Kubeconfig], cluster: str,
                    namespace: str, metrics_address: str = "") -> None:
    """Run the agent of a cluster until cancelled. ``bootstrap``, ``member_config``: return the present credentials for
    the control plane and the cluster; raise Invalid. ``metrics_address``: host:port, or empty to serve no metrics.
    Workloads are fenced from the start, also while the control plane is unreachable or the agent has not joined."""
    identity = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    async with Api(member_config(), agent="nova-agent", reload=member_config) as member, \
            Api(Kubeconfig(server=""), agent="nova-agent") as nova:
        heartbeat = Heartbeat(nova, cluster, identity)
        agent = Agent(nova, member, cluster, heartbeat)
        credentials = Credentials(member, namespace, cluster, bootstrap)
        try:
            async with serve_metrics(metrics_address, lambda: agent_metrics(agent)), asyncio.TaskGroup() as tasks:
                tasks.create_task(agent.run_locally())
                tasks.create_task(heartbeat.share_grace(member, credentials.secret))
                config = await _join(credentials, nova)
                await heartbeat.acquire()
                LOG.info("Cluster %s: this agent holds the Lease, with epoch %d", cluster, heartbeat.epoch)
                reporter = Reporter(nova, member, cluster, heartbeat.epoch, agent.applied_with_pods, agent.unscheduled,
                                    agent.copies)
                backpropagator = Backpropagator(
                    nova, member, cluster, agent.copies,
                    lambda name: agent.informer.objects.get(f"{agent.namespace}/{name}"), lambda: heartbeat.held)
                for loop in (heartbeat.run(), agent.run(), reporter.run(), backpropagator.run(),
                             _renew(credentials, config, nova)):
                    tasks.create_task(loop)
        finally:
            if heartbeat.renewed is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(heartbeat.release(), 5.0)


async def _join(credentials: Credentials, nova: Api) -> Kubeconfig:
    """Return credentials that the control plane accepts, and use them in the client ``nova``. Retries until then."""
    pause = 1.0  # seconds; short at first: the rights of a new cluster may take effect a moment after its creation
    while True:
        try:
            return await _log_in(credentials, nova)
        except ReportedError as error:
            LOG.error("Cluster %s cannot join, retrying in %.0f s: %s", credentials.cluster, pause, error.message)
            await asyncio.sleep(pause)
            pause = min(_RETRY, 2 * pause)


async def _log_in(credentials: Credentials, nova: Api) -> Kubeconfig:
    """Return the stored credentials, or new ones if the control plane refuses these, and use them in the client
    ``nova``. Raises ReportedError."""
    config = await credentials.obtain()
    await nova.use(config)
    if await _rejected(nova, credentials.cluster):
        LOG.warning("The federation control plane refused the credentials of cluster %s, joining again",
                    credentials.cluster)
        config = await credentials.obtain(ignore_stored=True)
        await nova.use(config)
    return config


async def _rejected(nova: Api, cluster: str) -> bool:
    """Return True if the control plane responds that it refuses the credentials."""
    try:
        await nova.get(f"/apis/coordination.k8s.io/v1/namespaces/{cluster_namespace(cluster)}/leases/{HEARTBEAT}")
    except ApiError as error:
        return error.status == 401
    return False


async def _renew(credentials: Credentials, config: Kubeconfig, nova: Api) -> None:
    """Renew the certificate whenever it is due or the control plane changes its authorities. If this fails and the
    control plane refuses the certificate, or users have replaced the bootstrap credentials, log in again."""
    while True:
        await asyncio.sleep(min(remaining(config.certificate), _REFRESH))
        try:
            renewed = await credentials.refresh(config, nova)
            if renewed is not config:
                config = renewed
                await nova.use(config)
                LOG.info("Cluster %s: renewed the certificate of the agent", credentials.cluster)
        except ReportedError as error:
            LOG.warning("Cannot renew the agent's certificate, retrying in %.0f s: %s", _RETRY, error.message)
            await asyncio.sleep(_RETRY)
            if not (isinstance(error, ApiError) and error.status == 401) and not credentials.replaced():
                continue
            try:
                config = await _log_in(credentials, nova)
                LOG.info("Cluster %s: the agent logged in to the federation control plane again", credentials.cluster)
            except ReportedError as problem:
                LOG.error("Cluster %s: the agent cannot log in to the federation control plane, retrying. If its"
                          " certificate has expired, replace the bootstrap Secret, for example with a token of 'novactl"
                          " join-command %s': %s", credentials.cluster, credentials.cluster, problem.message)
