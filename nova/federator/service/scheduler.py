"""The scheduler process: follows the control plane, places groups and merges statuses."""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Mapping
from typing import Any

from nova.federator.api.names import CLUSTER_GROUP, NAMESPACE, POLICY_GROUP, SCHEDULE_GROUP, VERSION
from nova.federator.client.tokens import bootstrap_config, create_token
from nova.federator.controllers.federation import Federation
from nova.federator.controllers.joining import Joining
from nova.federator.controllers.providers import Providers
from nova.federator.controllers.recovery import Recovery
from nova.federator.controllers.signing import Authority
from nova.federator.controllers.standby import Standby
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.informer import wait_synced
from nova.federator.scheduling.standby import Settings
from nova.federator.service.alerts import AlertReceiver
from nova.federator.service.hosting import Hosting, keep_init_kubeconfig
from nova.federator.service.leader import Leader

LOG = logging.getLogger(__name__)
_SYNC_TIMEOUT = 120.0  # seconds for the first lists
_WAIT = 1.0  # seconds between two checks of a control plane that is not ready
_REQUIRED = {CLUSTER_GROUP: {"Cluster"}, POLICY_GROUP: {"SchedulePolicy", "ScheduleGroup"},
             SCHEDULE_GROUP: {"Schedule", "ClusterReport"}}


class Scheduler:
    """A scheduler process. ``authority``: None if it signs no certificates. ``hosting``: None if the control plane runs
    in no cluster. ``environment``: variables with the settings of standby. ``alerts``: None if it receives no alerts.
    Raises Invalid if the settings are invalid."""

    def __init__(self, api: Api, authority: Authority | None, hosting: Hosting | None = None,
                 identity: str = "", environment: Mapping[str, str] | None = None,
                 alerts: AlertReceiver | None = None) -> None:
        self.api, self.hosting, self.alerts = api, hosting, alerts
        self.identity = identity or f"{socket.gethostname()}-{os.getpid()}"
        self.federation = Federation(api)
        self.joining = Joining(api, authority) if authority else None
        self.standby = Standby(api, self.federation.clusters, self.federation.placer, self.federation.recorder,
                               Providers(environment or {}), Settings.of(environment or {}), self._join_config)

    async def run(self) -> None:
        """Follow the control plane, and decide while this process leads. Ends with Lost when another one leads."""
        leader = Leader(self.api, NAMESPACE, "nova-scheduler", self.identity)
        self.federation.placer.writer.leads = self.standby.leads = leader.valid
        recovery = Recovery(self.api, self.federation.recorder, leader.valid)
        await self._wait_for_control_plane()
        informers = await self.federation.informers()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.alerts:
                    tasks.create_task(self.alerts.run())
                for informer in informers.values():
                    tasks.create_task(informer.run())
                await wait_synced(informers, _SYNC_TIMEOUT)
                tasks.create_task(self.federation.run_custom())
                await leader.acquire()
                loops: list[Coroutine[Any, Any, None]] = [
                    leader.keep(), *(part.run() for part in (self.federation.clusters, self.federation.placer,
                                                             self.federation.statuses, self.federation.recorder,
                                                             self.standby, self.federation.backpropagation, recovery))]
                prepared = asyncio.Event()
                if self.joining:
                    loops += [self.joining.requests.run(), self.joining.run(),
                              keep_init_kubeconfig(self.api, self.hosting, prepared)]
                else:
                    prepared.set()
                if self.hosting:
                    loops.append(self.hosting.run(prepared))
                for loop in loops:
                    tasks.create_task(loop)
        finally:
            await asyncio.shield(leader.release())

    async def _join_config(self, cluster: str) -> str:
        """Return a kubeconfig with which the agent of a new cluster joins. Raises ApiError."""
        server = await self.hosting.public_server() if self.hosting else ""
        return bootstrap_config(self.api.config, await create_token(self.api, cluster), server).render("nova-agent")

    async def _wait_for_control_plane(self) -> None:
        """Wait until the API server is reachable and serves the custom resources. An installation creates these after
        the event NovaAPIServerEndpointReady."""
        warned, announced = False, self.hosting is None
        while True:
            try:
                await self.api.ensure("/api/v1/namespaces", {
                    "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
                if not announced and self.hosting:
                    await self.hosting.report("NovaAPIServerEndpointReady", "The Nova API server is reachable.")
                    announced = True
                missing = [group for group, kinds in _REQUIRED.items()
                           if not kinds <= (await self.api.discover(f"{group}/{VERSION}")).keys()]
                if not missing:
                    return
                problem = f"the custom resources of {', '.join(missing)} are not installed"
            except ApiError as error:
                problem = error.message
            if not warned:
                LOG.warning("Waiting for the control plane: %s", problem)
                warned = True
            await asyncio.sleep(_WAIT)
