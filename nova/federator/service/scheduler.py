"""The scheduler process: follows the control plane, places groups and merges statuses."""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from typing import Any

from nova.federator.api.names import NAMESPACE
from nova.federator.controllers.federation import Federation
from nova.federator.controllers.joining import Joining
from nova.federator.controllers.signing import Authority
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.informer import wait_synced
from nova.federator.service.leader import Leader

LOG = logging.getLogger(__name__)
_SYNC_TIMEOUT = 120.0  # seconds for the first lists


class Scheduler:
    """A scheduler process. ``authority``: None if this process signs no certificates."""

    def __init__(self, api: Api, authority: Authority | None, identity: str = "") -> None:
        self.api = api
        self.identity = identity or f"{socket.gethostname()}-{os.getpid()}"
        self.federation = Federation(api)
        self.joining = Joining(api, authority) if authority else None

    async def run(self) -> None:
        """Follow the control plane, and decide while this process leads. Ends with Lost when another one leads."""
        leader = Leader(self.api, NAMESPACE, "nova-scheduler", self.identity)
        await self._ensure_namespace()
        informers = await self.federation.informers()
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in informers.values():
                    tasks.create_task(informer.run())
                await wait_synced(informers, _SYNC_TIMEOUT)
                await leader.acquire()
                loops: list[Coroutine[Any, Any, None]] = [
                    leader.keep(), *(part.run() for part in (self.federation.clusters, self.federation.placer,
                                                             self.federation.statuses, self.federation.recorder))]
                if self.joining:
                    loops += [self.joining.requests.run(), self.joining.run()]
                for loop in loops:
                    tasks.create_task(loop)
        finally:
            await asyncio.shield(leader.release())

    async def _ensure_namespace(self) -> None:
        try:
            await self.api.create("/api/v1/namespaces", {
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
