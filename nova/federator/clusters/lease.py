"""The heartbeat of an agent: a Lease that only one live agent of a cluster holds."""

import asyncio
import contextlib
import functools
import logging
import pathlib
import time
from collections import deque

from nova.federator.api import times
from nova.federator.api.names import HEARTBEAT, SILENT_SINCE, WAITING, cluster_namespace
from nova.federator.kube.client import Api, ApiError, Object, hedged
from nova.federator.kube.informer import later

LOG = logging.getLogger(__name__)
RENEW = 10.0  # longest time between two renewals of the Lease, in seconds; a fence time can make it shorter
DURATION = 40  # seconds after a renewal in which no other agent may take the Lease
_RETRY = 2.0  # seconds after which a failed attempt to acquire or renew the Lease is repeated
_REQUEST = 4.0  # timeout of one attempt with all of its requests, in seconds
# Returns the seconds since boot, including those in which the machine was suspended. Monotonic.
now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
_GRACE = 8.0  # seconds after its start in which an agent must reach the control plane; otherwise it fences workloads
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")  # stored times of now() are valid until the next boot


class Heartbeat:
    """A Lease that this agent renews. ``epoch``: a number that each new agent increases; the scheduler ignores reports
    with an older epoch. ``renewed``: monotonic time at which the last successful renewal began, None before the first.
    ``held``: True while that renewal is valid. ``resumed``: monotonic time at which renewals began, or began again
    after a gap. ``interval``: seconds between two renewals. ``early``: set it to renew immediately."""

    def __init__(self, nova: Api, cluster: str, identity: str) -> None:
        self.nova, self.cluster, self.identity = nova, cluster, identity
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{cluster_namespace(cluster)}/leases"
        self.epoch = 0
        self.renewed: float | None = None
        self.resumed = 0.0
        self.interval = RENEW
        self.early = asyncio.Event()
        self._started, self._touched = now(), 0.0
        self._lease: Object | None = None  # the Lease as the last renewal stored it
        self._version = ""  # resourceVersion of the Lease
        # (renewTime, monotonic start) of the newest attempts to renew, including those without a response
        self._attempts: deque[tuple[str, float]] = deque(maxlen=8)
        self._seen: tuple[str, float] = ("", 0.0)  # newest renewal by another agent, time of its first observation

    @property
    def reached(self) -> bool:
        """Return True if the control plane has stored a renewal of this agent, or a note that it waits."""
        return bool(self.renewed or self._touched)

    @property
    def held(self) -> bool:
        return self.renewed is not None and now() - self.renewed < DURATION

    def silence(self) -> float:
        """Return the seconds since the control plane stored a renewal, or a note that this agent waits for the Lease.
        Before the first of these, return 0 for _GRACE seconds after the start, and infinity after these seconds."""
        if self.reached:
            return now() - max(self.renewed or 0.0, self._touched)
        return float("inf") if now() - self._started > _GRACE else 0.0

    async def share_grace(self, member: Api, secret: str) -> None:
        """Let _GRACE begin at the first start after which no agent has reached the control plane: an agent that
        restarts again and again must fence workloads, too. An annotation of the Secret at the path ``secret`` of the
        cluster contains the time of that start until an agent reaches the control plane."""
        boot, note = _BOOT.read_text().strip(), None
        while True:
            try:
                if note is None:
                    if (stored := await member.find(secret)) is None:
                        return  # nothing to fence: no agent has joined yet
                    if note := str((stored["metadata"].get("annotations") or {}).get(SILENT_SINCE) or ""):
                        self._started = min(self._started, _time_of(note, boot))
                elif self.reached and not note:
                    return
                elif self.reached or not note:
                    new = "" if self.reached else f"{boot}/{self._started:.3f}"
                    await member.patch(secret, {"metadata": {"annotations": {SILENT_SINCE: new or None}}})
                    note = new
            except ApiError as error:
                LOG.warning("Cannot store when the federation control plane became unreachable, retrying: %s", error)
            await asyncio.sleep(1.0)

    async def acquire(self) -> None:
        """Wait until this agent holds the Lease. A Lease of another agent is taken after it has not changed for its
        duration. Raises ApiError with status 401 if the control plane refuses the credentials."""
        warned = False
        while True:
            try:
                async with asyncio.timeout(_REQUEST):
                    if await self._renew(taking=True):
                        return
                if not warned:
                    warned = True
                    LOG.warning("Another agent of cluster %s holds its Lease, waiting until it expires", self.cluster)
            except (ApiError, TimeoutError) as error:
                if isinstance(error, ApiError) and error.status == 401:
                    raise
                LOG.warning("Cannot acquire the Lease of cluster %s, retrying: %s", self.cluster,
                            str(error) or f"no response within {_REQUEST:.0f} s")
            await asyncio.sleep(_RETRY)

    async def run(self) -> None:
        """Renew the Lease until cancelled. Raises RuntimeError if another agent has taken the Lease."""
        while True:
            due = (self.renewed or 0.0) + self.interval
            with contextlib.suppress(TimeoutError):  # the interval may become shorter meanwhile
                await asyncio.wait_for(self.early.wait(), min(1.0, max(0.1, due - now())))
            if now() < due and not self.early.is_set():
                continue
            self.early.clear()
            try:
                async with asyncio.timeout(_REQUEST):
                    if not await hedged(functools.partial(self._renew, taking=False), 1.0):
                        raise RuntimeError("Another agent of this cluster took the Lease: this agent stops.")
            except (ApiError, TimeoutError) as error:
                LOG.warning("Cluster %s: the Lease was not renewed for %.0f s, retrying: %s", self.cluster,
                            self.silence(), str(error) or f"no response within {_REQUEST:.0f} s")
                await asyncio.sleep(min(_RETRY, self.interval / 4))

    async def _renew(self, taking: bool) -> bool:
        """Renew or acquire the Lease. Return False if another agent holds it."""
        started = now()
        path = f"{self._collection}/{HEARTBEAT}"
        try:
            lease = self._lease or await self.nova.get(path)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") != self.identity and not self._may_take(lease, taking, started):
                if taking:
                    await self._wait_visibly(path, lease, started)
                return False
            epoch = self.epoch or int(spec.get("leaseTransitions") or 0) + 1
            executed = next((begun for stamp, begun in self._attempts if stamp == spec.get("renewTime")), 0.0)
            if self.epoch and executed > (self.renewed or 0.0):  # a write was executed, but its response was lost
                stored, started = lease, executed
            else:
                stored = await self.nova.replace(path, self._spec(lease, epoch, started))
        except ApiError as error:
            previous, self._lease = self._lease, None
            if error.conflict and previous is not None:
                return await self._renew(taking)  # the cached Lease is outdated: read it again
            if error.conflict:
                return not taking
            if not error.missing:
                raise
            epoch = max(1, self.epoch)
            stored = await self.nova.create(self._collection, self._spec({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": HEARTBEAT}}, epoch,
                started))
        version = str(stored["metadata"].get("resourceVersion"))
        if later(self._version, version):
            raise RuntimeError("The federation control plane was restored from a backup: this agent exits. After its"
                               " restart it compares all copies with the restored schedules and reports their state.")
        if self.renewed is None or started - self.renewed > 2 * RENEW:
            self.resumed = now()
        self._version = version
        self._lease, self.epoch, self.renewed = stored, epoch, started
        return True

    async def _wait_visibly(self, path: str, lease: Object, started: float) -> None:
        """Note in the Lease of another agent that this agent runs, too, and does not fence while it reaches the control
        plane. Otherwise the scheduler would assume that workloads stop if the other agent exits. Raises ApiError."""
        annotations = {**(lease["metadata"].get("annotations") or {}), WAITING: f"{self.identity}/{started:.3f}"}
        await self.nova.replace(path, {**lease, "metadata": {**lease["metadata"], "annotations": annotations}})
        self._touched = started

    def _may_take(self, lease: Object, taking: bool, started: float) -> bool:
        """Return True if the holder released the Lease, or this process has seen no renewal for its duration."""
        spec = lease.get("spec") or {}
        version = f"{spec.get('holderIdentity')}/{spec.get('renewTime')}/{spec.get('leaseTransitions')}"
        if not taking:
            return False
        if self._seen[0] != version:
            self._seen = version, started
        return not spec.get("holderIdentity") or started - self._seen[1] >= int(
            spec.get("leaseDurationSeconds") or DURATION)

    async def release(self) -> None:
        """Release the Lease, so that a new agent need not wait until it expires."""
        path = f"{self._collection}/{HEARTBEAT}"
        try:
            lease = await self.nova.get(path)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self.nova.replace(path, lease)
        except ApiError as error:
            LOG.debug("Cannot release the Lease of the agent, it expires later: %s", error)

    def _spec(self, lease: Object, epoch: int, started: float) -> Object:
        renewed = times.now_exactly()
        self._attempts.append((renewed, started))
        return {**lease, "spec": {"holderIdentity": self.identity, "leaseDurationSeconds": DURATION,
                                  "renewTime": renewed, "leaseTransitions": epoch}}


def _time_of(note: str, boot: str) -> float:
    """Return the time in an annotation as a value of now(); -inf if it is invalid or was stored before this boot."""
    noted_boot, _slash, since = note.partition("/")
    with contextlib.suppress(ValueError):
        if noted_boot == boot:
            return float(since)
    return float("-inf")
