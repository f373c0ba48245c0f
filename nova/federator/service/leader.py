"""Election of the scheduler that decides, by a Lease. The others follow the same watches and take over."""

import asyncio
import contextlib
import logging
import time
from typing import Any

from nova.federator.api import times
from nova.federator.kube.client import Api, ApiError

LOG = logging.getLogger(__name__)
_DURATION = 15.0  # seconds for which a renewal is valid
_RENEW = 4.0  # seconds between two renewals
_GIVE_UP = 10.0  # seconds without a successful renewal after which a leader stops deciding


class Lost(Exception):
    """Raised when this process is not the leader any more."""


class Leader:
    """A candidate. Expiry is judged by this process's monotonic clock: a Lease is free if it has not changed for its
    duration while it was observed."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str) -> None:
        self.api, self.identity, self.name = api, identity, name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._seen: tuple[str, float] = ("", 0.0)  # resource version, when it was first observed
        self._renewed = 0.0  # when the last successful renewal began

    def valid(self) -> bool:
        """Return True if no other candidate can have become the leader: a process that was suspended must not write."""
        return time.monotonic() - self._renewed < _GIVE_UP

    async def acquire(self) -> None:
        """Wait until this process is the leader."""
        failures = 0
        while True:
            try:
                if await self._try():
                    LOG.info("This scheduler leads")
                    return
            except ApiError as error:
                failures += 1
                LOG.log(logging.WARNING if failures == 3 else logging.DEBUG,
                        "The lease %s was not acquired and is tried again: %s", self.name, error)
            await asyncio.sleep(_RENEW / 2)

    async def keep(self) -> None:
        """Renew until cancelled. Raises Lost."""
        while True:
            await asyncio.sleep(_RENEW)
            try:
                async with asyncio.timeout(_RENEW):
                    if not await self._try():
                        raise Lost("another scheduler leads")
            except (ApiError, TimeoutError) as error:
                if not self.valid():
                    raise Lost(f"the lease was not renewed for {_GIVE_UP:.0f} s: {error}") from None

    async def release(self) -> None:
        """Let another scheduler lead at once."""
        with contextlib.suppress(ApiError):
            lease = await self.api.get(self._path)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"].update(holderIdentity="", renewTime=times.now_exactly())
                await self.api.replace(self._path, lease)

    async def _try(self) -> bool:
        """Renew the Lease, or take it if it is free. Return False if another candidate holds it."""
        started = time.monotonic()
        try:
            lease = await self.api.get(self._path)
        except ApiError as error:
            if not error.missing:
                raise
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name},
                    "spec": self._spec(0)}
            await self.api.create(self._collection, body)
            self._renewed = started
            return True
        spec, version = lease["spec"], lease["metadata"]["resourceVersion"]
        holder = spec.get("holderIdentity")
        if holder != self.identity:
            if self._seen[0] != version:
                self._seen = version, time.monotonic()
            if holder and time.monotonic() - self._seen[1] < _DURATION:
                return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self.identity)
        try:
            await self.api.replace(self._path, {**lease, "spec": self._spec(transitions)})
        except ApiError as error:
            if error.conflict:
                return False
            raise
        self._renewed = started
        return True

    def _spec(self, transitions: int) -> dict[str, Any]:
        return {"holderIdentity": self.identity, "leaseDurationSeconds": int(_DURATION),
                "renewTime": times.now_exactly(),
                "acquireTime": times.now_exactly(), "leaseTransitions": transitions}
