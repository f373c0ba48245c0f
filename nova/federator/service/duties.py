"""Duties of the scheduler, which its replicas share by Leases: each duty is performed by the holder of its Lease.

All replicas follow the same watches, and each takes the duties whose Leases are free. A replica without duties requests
one from a replica with several, by an annotation on its Lease; the holder stops this duty and hands the Lease over.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from nova.federator.api import times
from nova.federator.api.names import WANTED_BY
from nova.federator.clusters.lease import now
from nova.federator.kube.client import Api, ApiError, Object, hedged

LOG = logging.getLogger(__name__)
PLACEMENT = "nova-scheduler"  # also the only Lease of earlier releases, whose holder performs all duties
STATUSES = "nova-scheduler-statuses"
_DURATION = 15.0  # seconds without a change after which other replicas take a Lease
_RENEW = 4.0  # seconds between two renewals of a Lease
_CHECK = 2.0  # seconds between two checks of the Leases
_GIVE_UP = 10.0  # seconds without a successful renewal after which a holder stops its duty
_HEDGE = 1.0  # seconds without a response after which a request is sent again
_RELEASED = 1  # leaseDurationSeconds of a Lease whose holder has stopped its duty
_TRANSITIONS = 2**31 - 1  # largest value of leaseTransitions


class Lost(Exception):
    """Raised when another replica may perform a duty that this replica has not stopped: the process must end."""


class _Lease(msgspec.Struct, frozen=True):
    """A stored Lease. ``released``: True if the previous holder has stopped the duty, so that ``holder`` may take the
    Lease, or any replica if ``holder`` is empty."""

    version: str
    holder: str
    renewed: str
    released: bool
    wanted_by: str
    acquired: str
    transitions: int


class Duties:
    """The duties of a replica. ``duties``: name of a Lease -> function that performs the duty until cancelled. The
    first duty is never handed over. ``identity``: a unique name of this process; it changes with every restart.

    A replica takes a Lease that its holder has released, or that this process has observed for _DURATION without a
    change, by the clock since boot, which includes suspended time. A Lease that was deleted, or whose holder a user
    has changed, is not free: its holder may not have noticed yet."""

    def __init__(self, api: Api, namespace: str, identity: str,
                 duties: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        self.api, self.identity, self.duties = api, identity, duties
        self._transferable = tuple(duties)[1:]
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._seen: dict[str, tuple[tuple[str, str] | None, float]] = {}  # Lease -> state, time of its 1st observation
        self._observed = False  # True if any of the Leases was observed: the control plane is not new
        self._written: dict[str, str] = {}  # Lease -> renewTime of the last attempt to write it for this replica
        self._renewed: dict[str, float] = {}  # duty that is performed here -> start of the last successful renewal
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the duties that are performed here, or being stopped
        self._failures = 0

    def validity(self, duty: str) -> float:
        """Return the seconds for which no other replica can take a duty; 0 if this replica does not perform it. A
        client must not write for the duty after this time: the process may have been suspended."""
        return max(0.0, self._renewed.get(duty, float("-inf")) + _GIVE_UP - now())

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Take, perform as tasks, and hand over duties until cancelled. Raises Lost."""
        while True:
            begun = now()
            await self._check(tasks)
            await asyncio.sleep(max(0.0, min(_CHECK + begun - now(), self._shortest())))

    async def release(self) -> None:
        """Release the Leases of this replica, whose tasks have ended, so that others can take them immediately."""
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_RENEW):
                for duty, lease in (await self._read()).items():
                    if duty in self._tasks and lease.holder == self.identity:
                        await self._write(duty, lease, "")

    def _shortest(self) -> float:
        """Return the seconds until the first duty of this replica must be stopped."""
        return min(map(self.validity, self._renewed), default=_GIVE_UP)

    async def _check(self, tasks: asyncio.TaskGroup) -> None:
        try:
            # The holder of a duty waits for a slow API server as long as the duty may be performed.
            async with asyncio.timeout(self._shortest() if self._renewed else _RENEW):
                leases = await self._read()
                # A slow or failing write of a Lease must not delay the other Leases.
                results = await asyncio.gather(*(self._attend(duty, leases.get(duty), tasks) for duty in self.duties),
                                               return_exceptions=True)
                if errors := [result for result in results if result is not None]:
                    raise next((error for error in errors if isinstance(error, Lost)), errors[0])
                await self._ask(leases)
            self._failures = 0
        except (ApiError, TimeoutError) as error:
            self._failures += 1
            LOG.log(logging.WARNING if self._failures == 3 else logging.DEBUG,
                    "Cannot read or renew the Leases of the scheduler, retrying in %.0f s: %s", _CHECK,
                    str(error) or "timed out")
        for duty in self._renewed:
            if not self.validity(duty):
                raise Lost(f"the Lease {duty} was not renewed for {_GIVE_UP:.0f} s")

    async def _read(self) -> dict[str, _Lease]:
        stored = await hedged(lambda: self.api.list(self._collection), _HEDGE)
        try:
            leases = {item["metadata"]["name"]: _decode(item) for item in stored["items"]
                      if item["metadata"]["name"] in self.duties}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ApiError(f"{self._collection} contains an unreadable Lease: {error!r}", 502) from None
        self._observed |= bool(leases)
        for duty in self.duties:
            # Changes of annotations and other metadata are ignored: not only the holder makes them.
            state = (leases[duty].holder, leases[duty].renewed) if duty in leases else None
            if duty not in self._seen or self._seen[duty][0] != state:
                self._seen[duty] = state, now()
        return leases

    async def _attend(self, duty: str, lease: _Lease | None, tasks: asyncio.TaskGroup) -> None:
        """Renew, take or hand over a Lease. Raises ApiError, and Lost if the Lease of a running task of this replica
        has another holder."""
        if duty not in self._tasks:
            if self._free(duty, lease) and await self._write(duty, lease, self.identity):
                LOG.info("This scheduler holds the Lease %s", duty)
                self._tasks[duty] = tasks.create_task(self.duties[duty]())
        elif lease is not None and lease.holder != self.identity:
            raise Lost(f"the holder of the Lease {duty} was changed to {lease.holder or 'none'}")
        elif duty not in self._renewed or (
                lease and lease.wanted_by not in ("", self.identity) and duty in self._transferable):
            await self._hand_over(duty, lease)
        elif lease is None or now() - self._renewed[duty] >= _RENEW:
            await self._write(duty, lease, self.identity)

    def _free(self, duty: str, lease: _Lease | None) -> bool:
        """Return True if no other replica performs a duty."""
        if now() - self._seen[duty][1] >= _DURATION:
            return True
        if lease is None:
            return not self._observed
        if lease.released:
            return lease.holder in ("", self.identity)
        # True if this replica wrote the Lease, but the response was lost or the duty could not be handed over.
        return lease.holder == self.identity and lease.renewed == self._written.get(duty)

    async def _hand_over(self, duty: str, lease: _Lease | None) -> None:
        """Stop a duty, then release its Lease to the replica that requested it. Continues an interrupted call."""
        self._renewed.pop(duty, None)
        self._tasks[duty].cancel()
        await asyncio.wait([self._tasks[duty]])
        del self._tasks[duty]
        if lease and await self._write(duty, lease, lease.wanted_by):
            LOG.info("Released Lease %s to another replica: %s", duty, lease.wanted_by or "any replica")

    async def _ask(self, leases: Mapping[str, _Lease]) -> None:
        """Request a duty from a replica that has at least two duties more than this one."""
        owners = {duty: lease.wanted_by or lease.holder for duty, lease in leases.items()}
        counts = Counter(owners.values())
        for duty in self._transferable:
            if owners.get(duty) and counts[owners[duty]] - max(counts[self.identity], len(self._tasks)) >= 2:
                with contextlib.suppress(ApiError):  # another replica was quicker
                    await self.api.patch(f"{self._collection}/{duty}", {"metadata": {
                        "resourceVersion": leases[duty].version, "annotations": {WANTED_BY: self.identity}}})
                return

    async def _write(self, duty: str, lease: _Lease | None, holder: str) -> bool:
        """Write a Lease. ``holder``: this replica, to take or renew the Lease; another replica, to release the Lease to
        it; or empty, to release the Lease to any replica. Return False if another client has changed the Lease."""
        started, stamp, own = now(), times.now_exactly(), holder == self.identity
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": duty}, "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": int(_DURATION) if own else _RELEASED,
                "renewTime": stamp, "acquireTime": stamp, "leaseTransitions": 0}}
        if own:
            self._written[duty] = stamp
        try:
            if lease is None:
                await self.api.create(self._collection, body)
            else:
                body["metadata"]["resourceVersion"] = lease.version
                same = lease.holder == holder
                body["spec"]["leaseTransitions"] = min(lease.transitions + (not same), _TRANSITIONS)
                if same and lease.acquired:
                    body["spec"]["acquireTime"] = lease.acquired
                await hedged(lambda: self._replace(duty, body), _HEDGE)
        except ApiError as error:
            if error.conflict:
                return False
            raise
        if own:
            self._renewed[duty] = started
        return True

    async def _replace(self, duty: str, body: Object) -> None:
        """Replace a Lease. A conflict is no error if an earlier attempt, whose response is missing, has written this
        body. Raises ApiError."""
        path = f"{self._collection}/{duty}"
        try:
            await self.api.replace(path, body)
        except ApiError as error:
            if not error.conflict or (await self.api.get(path)).get("spec") != body["spec"]:
                raise


def _decode(obj: Object) -> _Lease:
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    return _Lease(str(metadata["resourceVersion"]), str(spec.get("holderIdentity") or ""),
                  str(spec.get("renewTime") or ""), spec.get("leaseDurationSeconds") == _RELEASED,
                  str((metadata.get("annotations") or {}).get(WANTED_BY) or ""), str(spec.get("acquireTime") or ""),
                  int(spec.get("leaseTransitions") or 0))
