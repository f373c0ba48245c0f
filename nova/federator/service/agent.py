"""The agent process: joins the control plane, then carries out schedules while it holds the heartbeat."""

import asyncio
import logging
import os
import socket

from nova.common.errors import ReportedError
from nova.federator.clusters.agent import Agent
from nova.federator.clusters.join import Credentials, remaining
from nova.federator.clusters.lease import Heartbeat
from nova.federator.clusters.report import Reporter
from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig

LOG = logging.getLogger(__name__)
_RETRY = 10.0  # seconds after which a failed registration or renewal is repeated


async def run_agent(bootstrap: Kubeconfig, member_config: Kubeconfig, cluster: str, namespace: str) -> None:
    """Run the agent of a cluster until cancelled."""
    async with Api(member_config, agent="nova-agent") as member:
        credentials = Credentials(member, namespace, cluster)
        config = await _until_joined(credentials, bootstrap)
        while True:
            renewal = asyncio.create_task(_renew(credentials, config))
            worker = asyncio.create_task(_serve(config, member, cluster))
            try:
                await asyncio.wait({renewal, worker}, return_when=asyncio.FIRST_COMPLETED)
                if worker.done():
                    worker.result()
                config = renewal.result()
            finally:
                for task in (worker, renewal):
                    task.cancel()
                await asyncio.gather(worker, renewal, return_exceptions=True)


async def _until_joined(credentials: Credentials, bootstrap: Kubeconfig) -> Kubeconfig:
    while True:
        try:
            return await credentials.obtain(bootstrap)
        except ReportedError as error:
            LOG.error("Cluster %s has not joined, next try in %.0f s: %s", credentials.cluster, _RETRY, error.message)
            await asyncio.sleep(_RETRY)


async def _renew(credentials: Credentials, config: Kubeconfig) -> Kubeconfig:
    """Return new credentials once the present ones are due."""
    await asyncio.sleep(remaining(config.certificate) if config.certificate else 1 << 30)
    while True:
        try:
            return await credentials.renew(config)
        except ReportedError as error:
            LOG.warning("The certificate was not renewed, next try in %.0f s: %s", _RETRY, error.message)
            await asyncio.sleep(_RETRY)


async def _serve(config: Kubeconfig, member: Api, cluster: str) -> None:
    identity = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    async with Api(config, agent="nova-agent") as nova:
        heartbeat = Heartbeat(nova, cluster, identity)
        await heartbeat.acquire()
        LOG.info("Cluster %s: this agent has epoch %d", cluster, heartbeat.epoch)
        agent = Agent(nova, member, cluster, heartbeat.epoch)
        reporter = Reporter(nova, member, cluster, heartbeat.epoch, lambda: agent.applied)
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in (heartbeat.run(), agent.run(), reporter.run()):
                    tasks.create_task(loop)
        finally:
            await asyncio.wait_for(asyncio.shield(heartbeat.release()), 5.0)
