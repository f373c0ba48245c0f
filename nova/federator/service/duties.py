"""Duties of the scheduler, which its replicas share by Leases: each duty is performed by the holder of its Lease.

All replicas follow the same watches, and each takes the duties whose Leases are free. A replica without duties asks one
that has several for one of them, by an annotation on its Lease; the holder stops this duty and hands the Lease over.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from nova.federator.api import times
from nova.federator.api.names import WANTED_BY
from nova.federator.kube.client import Api, ApiError, Object

LOG = logging.getLogger(__name__)
PLACEMENT = "nova-scheduler"  # The name is the one of earlier releases, whose holder performs all duties.
STATUSES = "nova-scheduler-statuses"
_DURATION = 15.0  # seconds for which a renewal is valid
_RENEW = 4.0  # seconds between two renewals
_CHECK = 2.0  # seconds between two reads of the Leases
_GIVE_UP = 10.0  # seconds without a successful renewal after which a holder stops its duty


class Lost(Exception):
    """Raised when another replica performs a duty that this one has not given up."""


class Duties:
    """The duties of a replica. ``duties``: name of a Lease -> function that performs the duty until cancelled. The
    first duty is never handed over. Expiry is judged by the monotonic clock of this process: a Lease is free if it has
    not changed for its duration while it was observed."""

    def __init__(self, api: Api, namespace: str, identity: str,
                 duties: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        self.api, self.identity, self.duties = api, identity, duties
        self._transferable = tuple(duties)[1:]
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._seen: dict[str, tuple[str, float]] = {}  # Lease -> resource version, when it was first observed
        self._renewed: dict[str, float] = {}  # Lease -> when the last successful renewal began
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the duties that are performed here
        self._failures = 0

    def valid(self, duty: str) -> bool:
        """Return True if no other replica can have taken a duty: a process that was suspended must not write."""
        return time.monotonic() - self._renewed.get(duty, float("-inf")) < _GIVE_UP

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Take, perform as tasks, and hand over duties until cancelled. Raises Lost."""
        while True:
            await self._check(tasks)
            await asyncio.sleep(_CHECK)

    async def release(self) -> None:
        """Let other replicas perform the duties of this one, whose tasks have ended, at once."""
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_RENEW):
                for duty, lease in (await self._read()).items():
                    if duty in self._tasks and _holder(lease) == self.identity:
                        await self._write(duty, lease, "")

    async def _check(self, tasks: asyncio.TaskGroup) -> None:
        try:
            async with asyncio.timeout(_RENEW):
                leases = await self._read()
                for duty in self.duties:
                    await self._attend(duty, leases.get(duty), tasks)
                await self._ask(leases)
            self._failures = 0
        except (ApiError, TimeoutError) as error:
            self._failures += 1
            LOG.log(logging.WARNING if self._failures == 3 else logging.DEBUG,
                    "The leases of the scheduler were not renewed and are tried again: %s",
                    str(error) or "no response in time")
        for duty in self._tasks:
            if not self.valid(duty):
                raise Lost(f"the lease {duty} was not renewed for {_GIVE_UP:.0f} s")

    async def _read(self) -> dict[str, Object]:
        leases = {lease["metadata"]["name"]: lease for lease in (await self.api.list(self._collection))["items"]}
        for duty in self.duties:
            version = leases[duty]["metadata"]["resourceVersion"] if duty in leases else ""
            if duty not in self._seen or self._seen[duty][0] != version:
                self._seen[duty] = version, time.monotonic()
        return leases

    async def _attend(self, duty: str, lease: Object | None, tasks: asyncio.TaskGroup) -> None:
        """Renew, take or hand over a Lease. Raises ApiError, and Lost if another replica holds a duty of this one."""
        now, holder = time.monotonic(), _holder(lease)
        if duty in self._tasks:
            if holder != self.identity:
                raise Lost(f"another scheduler holds the lease {duty}")
            if (wanted_by := _wanted_by(lease)) and duty in self._transferable:
                await self._hand_over(duty, wanted_by, lease)
            elif now - self._renewed[duty] >= _RENEW:
                await self._write(duty, lease, self.identity)
            return
        free = holder in ("", self.identity) or now - self._seen[duty][1] >= _DURATION
        if free and await self._write(duty, lease, self.identity):
            LOG.info("This scheduler holds the lease %s", duty)
            self._tasks[duty] = tasks.create_task(self.duties[duty]())

    async def _hand_over(self, duty: str, wanted_by: str, lease: Object | None) -> None:
        """Stop a duty, then give its Lease to another replica."""
        task = self._tasks.pop(duty)
        task.cancel()
        await asyncio.wait([task])
        self._renewed.pop(duty)
        if await self._write(duty, lease, wanted_by):
            LOG.info("The lease %s was handed over to %s", duty, wanted_by)

    async def _ask(self, leases: Mapping[str, Object]) -> None:
        """Ask a replica that has at least two duties more than this one for a duty."""
        owners = {duty: _wanted_by(leases.get(duty)) or _holder(leases.get(duty)) for duty in self.duties}
        counts = Counter(owners.values())
        for duty in self._transferable:
            if owners[duty] and counts[owners[duty]] - max(counts[self.identity], len(self._tasks)) >= 2:
                with contextlib.suppress(ApiError):  # another replica was quicker
                    await self.api.patch(f"{self._collection}/{duty}", {"metadata": {
                        "resourceVersion": leases[duty]["metadata"]["resourceVersion"],
                        "annotations": {WANTED_BY: self.identity}}})
                return

    async def _write(self, duty: str, lease: Object | None, holder: str) -> bool:
        """Set the holder of a Lease. Return False if another replica was quicker."""
        started, now = time.monotonic(), times.now_exactly()
        spec: dict[str, Any] = {"holderIdentity": holder, "leaseDurationSeconds": int(_DURATION), "renewTime": now,
                                "acquireTime": now, "leaseTransitions": 0}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": duty}, "spec": spec}
        try:
            if lease is None:
                await self.api.create(self._collection, body)
            else:
                old = lease["spec"]
                spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0)
                if _holder(lease) == holder:
                    spec["acquireTime"] = old.get("acquireTime") or now
                else:
                    spec["leaseTransitions"] += 1
                body["metadata"] = {"name": duty, "resourceVersion": lease["metadata"]["resourceVersion"]}
                await self.api.replace(f"{self._collection}/{duty}", body)
        except ApiError as error:
            if error.conflict:
                return False
            raise
        if holder == self.identity:
            self._renewed[duty] = started
        return True


def _holder(lease: Object | None) -> str:
    return str(lease["spec"].get("holderIdentity") or "") if lease else ""


def _wanted_by(lease: Object | None) -> str:
    return str((lease["metadata"].get("annotations") or {}).get(WANTED_BY) or "") if lease else ""
