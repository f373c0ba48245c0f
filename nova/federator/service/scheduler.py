"""The scheduler process: follows the control plane, and performs duties that its replicas share."""

import asyncio
import functools
import gc
import logging
import os
import socket
from collections.abc import Callable, Mapping

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
from nova.federator.service.duties import PLACEMENT, STATUSES, Duties
from nova.federator.service.hosting import Hosting, keep_init_kubeconfig
from nova.federator.service.metrics import scheduler_metrics, serve_metrics

LOG = logging.getLogger(__name__)
_SYNC_TIMEOUT = 120.0  # seconds without a new page of the first lists after which the process ends
_WAIT = 1.0  # seconds between two checks of a control plane that is not ready
_REQUIRED = {CLUSTER_GROUP: {"Cluster"}, POLICY_GROUP: {"SchedulePolicy", "ScheduleGroup"},
             SCHEDULE_GROUP: {"Schedule", "ClusterReport"}}


class Scheduler:
    """A scheduler process. ``authority``: see Joining; None to sign no certificates. ``hosting``: None if the control
    plane runs in no cluster. ``environment``: variables with the settings of standby. ``alerts``: None to receive no
    alerts. ``metrics_address``: host:port, or empty to serve no metrics. Raises Invalid for invalid settings."""

    def __init__(self, api: Api, authority: Callable[[], Authority] | None, hosting: Hosting | None = None,
                 identity: str = "", environment: Mapping[str, str] | None = None,
                 alerts: AlertReceiver | None = None, metrics_address: str = "") -> None:
        self.api, self.hosting, self.alerts, self.metrics_address = api, hosting, alerts, metrics_address
        self.identity = identity or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.duties = Duties(api, NAMESPACE, self.identity, {PLACEMENT: self._place, STATUSES: self._merge})
        self.placing, merging = (api.limited(functools.partial(self.duties.validity, duty))
                                 for duty in (PLACEMENT, STATUSES))
        self.federation = Federation(self.placing, merging)
        self.joining = Joining(self.placing, authority) if authority else None
        self.standby = Standby(self.placing, self.federation.clusters, self.federation.placer, self.federation.recorder,
                               Providers(environment or {}), Settings.of(environment or {}), self._join_config)
        self.standby.leads = lambda: self.duties.validity(PLACEMENT) > 0
        self.recovery = Recovery(self.placing, self.federation.recorder)

    async def run(self) -> None:
        """Follow the control plane, and perform the duties whose Leases this process holds. Raises Lost when another
        process has taken one of these Leases."""
        async with serve_metrics(self.metrics_address, lambda: scheduler_metrics(
                self.federation, self.duties, self.standby, self.recovery)):
            await self._wait_for_control_plane()
            await self._follow()

    async def _follow(self) -> None:
        informers = await self.federation.informers()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.alerts:
                    tasks.create_task(self.alerts.run())
                for informer in informers.values():
                    tasks.create_task(informer.run())
                await wait_synced(informers, _SYNC_TIMEOUT)
                gc.collect()  # first: freeze would keep garbage
                gc.freeze()  # later collections do not examine the listed objects
                tasks.create_task(self.federation.run_custom())
                tasks.create_task(self.federation.clusters.watch_leases())
                tasks.create_task(self.duties.run(tasks))
        finally:
            await asyncio.shield(self.duties.release())

    async def _place(self) -> None:
        """Decide where workloads run, and admit clusters, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.federation.clusters, self.federation.placer, self.federation.recorder, self.standby,
                         self.recovery):
                tasks.create_task(part.run())
            prepared = asyncio.Event()
            if self.joining:
                tasks.create_task(self.joining.requests.run())
                tasks.create_task(self.joining.run())
                tasks.create_task(keep_init_kubeconfig(self.placing, self.hosting, prepared))
            else:
                prepared.set()
            if self.hosting:
                tasks.create_task(self.hosting.run(prepared))

    async def _merge(self) -> None:
        """Write the statuses of users' objects and the objects of backpropagation, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.federation.statuses, self.federation.backpropagation,
                         self.federation.backpropagation.recorder):
                tasks.create_task(part.run())

    async def _join_config(self, cluster: str) -> str:
        """Return a kubeconfig with which the agent of a new cluster joins. Raises ApiError."""
        server = await self.hosting.public_server() if self.hosting else ""
        return bootstrap_config(self.api.config, await create_token(self.placing, cluster), server).render("nova-agent")

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
                LOG.warning("Waiting for the federation control plane: %s", problem)
                warned = True
            await asyncio.sleep(_WAIT)
