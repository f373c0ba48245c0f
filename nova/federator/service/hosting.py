"""Support of installations: events in the hosting cluster, for which they wait, and the kubeconfig of new agents."""

import asyncio
import base64
import logging
import time

from nova.federator.api import times
from nova.federator.api.names import NAMESPACE, SCHEDULER
from nova.federator.client.installation import address_of
from nova.federator.client.tokens import bootstrap_config, create_token
from nova.federator.kube.client import Api, ApiError

LOG = logging.getLogger(__name__)
_INIT = "nova-cluster-init-kubeconfig"
_RETRY = 2.0  # seconds between two tries
_EVENT_INTERVAL = 1200.0  # seconds after which events are written again: API servers delete them after an hour
_TOKEN_HOURS = 168  # validity of the token in the kubeconfig for agents, in hours; replaced after half of it


class Hosting:
    """Writes events to the hosting cluster. ``namespace``: namespace of the control plane in the hosting cluster."""

    def __init__(self, hosting: Api, nova: Api, namespace: str) -> None:
        self.hosting, self.nova, self.namespace = hosting, nova, namespace
        self._events: dict[str, str] = {}

    async def report(self, reason: str, message: str) -> None:
        """Write an event whose name is its reason, so that ``kubectl wait event/REASON`` finds it. Retries until this
        succeeds; :meth:`run` then writes the event periodically."""
        while True:
            try:
                await self._write(reason, message)
                self._events[reason] = message
                return
            except ApiError as error:
                LOG.warning("Cannot write event %s to the hosting cluster, retrying: %s", reason, error)
                await asyncio.sleep(_RETRY)

    async def run(self, prepared: asyncio.Event) -> None:
        """Report that the control plane is ready once ``prepared`` is set, and keep events alive until cancelled."""
        await prepared.wait()
        await self.report("NovaControlPlaneReady", "The Nova control plane is ready.")
        while True:
            await asyncio.sleep(_EVENT_INTERVAL)
            for reason, message in list(self._events.items()):
                await self.report(reason, message)

    async def _write(self, reason: str, message: str) -> None:
        now = times.now()
        await self.hosting.apply(f"/api/v1/namespaces/{self.namespace}/events/{reason}", {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": reason, "namespace": self.namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Service", "name": "apiserver", "namespace": self.namespace},
            "reason": reason, "message": message, "type": "Normal", "count": 1, "source": {"component": SCHEDULER},
            "firstTimestamp": now, "lastTimestamp": now}, SCHEDULER, force=True)

    async def public_server(self) -> str:
        """Return the address of the Nova API server for agents, from the load balancer of its Service. Raises ApiError
        while the Service has no address."""
        service = await self.hosting.get(f"/api/v1/namespaces/{self.namespace}/services/apiserver")
        if address := address_of(service):
            return address.url
        raise ApiError(f"Service {self.namespace}/apiserver has no load balancer address yet.")


async def keep_init_kubeconfig(nova: Api, hosting: Hosting | None, attempted: asyncio.Event) -> None:
    """Keep the Secret elotl/nova-cluster-init-kubeconfig, with which agents of new clusters join, until cancelled. The
    token in it is replaced before it expires. ``attempted``: set after the first attempt to write the Secret."""
    due = 0.0
    while True:
        try:
            if time.monotonic() >= due:
                server = await hosting.public_server() if hosting else ""
                config = bootstrap_config(nova.config, await create_token(nova, hours=_TOKEN_HOURS), server)
                body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _INIT, "namespace": NAMESPACE},
                        "type": "Opaque",
                        "data": {"kubeconfig": base64.b64encode(config.render("nova-agent").encode()).decode()}}
                path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{_INIT}"
                await nova.apply(path, body, SCHEDULER, force=True)
                due = time.monotonic() + _TOKEN_HOURS * 1800
        except ApiError as error:
            LOG.warning("Cannot write the Secret with the kubeconfig for new agents, retrying: %s", error)
        attempted.set()
        await asyncio.sleep(_RETRY if time.monotonic() >= due else 60.0)
