"""The heartbeat of an agent: a Lease that only one live agent of a cluster holds."""

import asyncio
import datetime
import logging
import time

from nova.federator.api.names import HEARTBEAT, cluster_namespace
from nova.federator.kube.client import Api, ApiError, Object

LOG = logging.getLogger(__name__)
RENEW = 10.0  # seconds between two renewals
DURATION = 40  # seconds for which a renewal is valid


class Heartbeat:
    """A Lease that this agent renews. ``epoch``: raised by each new agent; reports of an older one are ignored.
    ``renewed``: monotonic time of the start of the last successful renewal."""

    def __init__(self, nova: Api, cluster: str, identity: str) -> None:
        self.nova, self.identity = nova, identity
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{cluster_namespace(cluster)}/leases"
        self.epoch, self.renewed = 0, time.monotonic()
        self._seen: tuple[str, float] = ("", 0.0)  # resource version of a foreign Lease, when it was first observed

    async def acquire(self) -> None:
        """Wait until this agent holds the Lease: another agent's must not have changed for its duration."""
        warned = False
        while True:
            try:
                if await self._renew(taking=True):
                    return
                if not warned:
                    warned = True
                    LOG.warning("Another agent of this cluster holds the lease; waiting until it expires")
            except ApiError as error:
                LOG.warning("The lease cannot be acquired and is tried again: %s", error)
            await asyncio.sleep(2.0)

    async def run(self) -> None:
        """Renew until cancelled. Raises RuntimeError if another agent has taken over."""
        while True:
            await asyncio.sleep(RENEW)
            try:
                async with asyncio.timeout(RENEW - 1):
                    if not await self._renew(taking=False):
                        raise RuntimeError("Another agent of this cluster took over; this one ends.")
            except (ApiError, TimeoutError) as error:
                LOG.warning("The lease was not renewed for %.0f s: %s", time.monotonic() - self.renewed, error)

    async def _renew(self, taking: bool) -> bool:
        started = time.monotonic()
        path = f"{self._collection}/{HEARTBEAT}"
        try:
            lease = await self.nova.get(path)
        except ApiError as error:
            if not error.missing:
                raise
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": HEARTBEAT}}
            await self.nova.create(self._collection, self._spec(lease, 1))
            self.epoch, self.renewed = 1, started
            return True
        spec, version = lease.get("spec") or {}, lease["metadata"]["resourceVersion"]
        epoch = int(spec.get("leaseTransitions") or 0)
        if spec.get("holderIdentity") != self.identity:
            if not taking:
                return False
            if self._seen[0] != version:
                self._seen = version, started
            duration = int(spec.get("leaseDurationSeconds") or DURATION)
            if spec.get("holderIdentity") and started - self._seen[1] < duration:
                return False
            epoch += 1
        try:
            await self.nova.replace(path, self._spec(lease, epoch))
        except ApiError as error:
            if error.conflict:
                return not taking  # changed meanwhile: decided at the next try
            raise
        self.epoch, self.renewed = epoch, started
        return True

    async def release(self) -> None:
        """Let a new agent start at once."""
        path = f"{self._collection}/{HEARTBEAT}"
        try:
            lease = await self.nova.get(path)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self.nova.replace(path, lease)
        except ApiError as error:
            LOG.debug("The lease was not released: %s", error)

    def _spec(self, lease: Object, epoch: int) -> Object:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # shown only
        return {**lease, "spec": {"holderIdentity": self.identity, "leaseDurationSeconds": DURATION, "renewTime": now,
                                  "leaseTransitions": epoch}}
