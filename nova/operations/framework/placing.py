"""Selection of a host for builds, moves and unshelving. The candidates are tried one after the other."""

import logging
from typing import Any

import msgspec

from nova import exception
from nova.objects.base import Object
from nova.objects.hosts.scheduling import RequestSpec, Selection
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.operations.framework.base import Operation, Wait
from nova.operations.framework.contexts import Control, HostContext

LOG = logging.getLogger(__name__)

# Maximum number of polls of a host that still has to remove remains of the instance, and seconds between two polls.
MAX_POLLS, POLL_INTERVAL = 30, 1.0


class PlacementData(Object, kw_only=True):
    """Data of an operation that chooses a host. ``candidates``: the host in use first, then the alternates.
    ``selected``: a scheduler has returned them. ``tries``: number of hosts that failed. ``polls``: number of waits
    for a host to remove remains of the instance. ``plugs``: interfaces that must be plugged before the guest starts."""

    spec: RequestSpec
    candidates: list[Selection] = []
    selected: bool = False
    host: str = ""
    tries: int = 0
    polls: int = msgspec.field(default=0, name="looks")
    plugs: list[str] = []


class RetryData(PlacementData, kw_only=True):
    max_tries: int = 3


def empty_spec(instance: Instance) -> dict[str, Any]:
    """Return the plain RequestSpec of an operation that has not been accepted yet."""
    return {"instance_uuids": [], "project_id": "", "flavor": msgspec.to_builtins(instance.flavor)}


def next_host(ctl: Control, data: PlacementData, *excluded: str) -> Selection:
    """Return the next candidate; request candidates from a scheduler if there are none. Raises NoValidHost. Leaves out
    the hosts ``excluded`` and hosts that still have remains of the instance. If no other host is available, requests
    the hosts with remains to remove them immediately, and raises Wait."""
    if not data.selected:
        ctl.group_hosts(data.spec)
        # Checked here, because an operation that ran before or was superseded may have left remains on any host.
        left = [host for host in ctl.evicted_hosts() if host not in (*excluded, *data.spec.ignore_hosts)]
        clean = msgspec.structs.replace(data.spec, ignore_hosts=[*data.spec.ignore_hosts, *left])
        try:
            select(ctl, data, clean)
        except exception.NoValidHost:
            _wait_for(ctl, data, left)
            raise
        data.polls = 0
    if not data.candidates:
        raise exception.NoValidHost(reason="The selected hosts have not enough free resources any more.")
    return data.candidates[0]


def select(ctl: Control, data: PlacementData, spec: RequestSpec) -> None:
    """Request candidates from a scheduler. Raises NoValidHost, unless the current candidates only violate a soft policy
    of the server group: these are then kept."""
    group = data.spec.group
    try:
        data.candidates = ctl.select(spec)[0]
    except exception.NoValidHost:
        if group is None or not group.stale or not data.candidates:
            raise
        LOG.info("No host meets the soft policy of server group %s better than host %s, which stays selected",
                 group.uuid, data.candidates[0].host)
    data.selected = True
    if group is not None:
        group.stale = False


def _wait_for(ctl: Control, data: PlacementData, left: list[str]) -> None:
    """Raise Wait while one of these hosts may remove its remains of the instance. Ignores hosts that are down."""
    polled_hosts = [host for host in left if ctl.host_up(host)] if data.polls < MAX_POLLS else []
    for host in polled_hosts:
        ctl.hasten_eviction(host)
    if polled_hosts:
        data.polls += 1
        raise Wait(seconds=POLL_INTERVAL)


def rule_out(data: PlacementData) -> None:
    """Remove the current candidate, if there is one, and exclude it from later scheduler requests. A candidate that
    only violates a soft policy of the server group is not excluded: the scheduler is called again."""
    group = data.spec.group
    if group is not None and group.stale:
        group.selections += 1
        data.selected = False
    elif data.candidates:
        data.spec.rule_out(data.candidates.pop(0))
    data.host, data.plugs = "", []


class PlacedOperation(Operation):
    """Base of operations that place a server without a host, create its guest there, and try the next host if that
    fails. A subclass has a step ``place``."""

    kind = "build"
    retry_from = "place"

    def unplug(self, host: HostContext) -> None:
        host.network.unplug(host.instance)

    def wipe(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance)
        host.disconnect_volumes()

    def unbind_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.disconnect()

    def may_retry(self, failure: Failure) -> bool:
        """Count the failure and return True to continue with the next candidate or a new scheduler request."""
        data: RetryData = self.data
        # A claim lost to another server does not count as a failure; each node is tried at most once.
        if failure.kind != exception.ClaimLost.__name__:
            data.tries += 1
        if not failure.retry or data.tries >= data.max_tries:
            return False
        # Retries are left, but no candidates: call the scheduler again, without the nodes that failed.
        if not data.candidates:
            data.selected = False
        return True
