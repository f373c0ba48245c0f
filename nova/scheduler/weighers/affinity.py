"""Weighers of the soft policies of server groups."""

from nova.objects.hosts.scheduling import SOFT_AFFINITY, SOFT_ANTI_AFFINITY
from nova.scheduler.columns import FloatColumn
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


class ServerGroupSoftAffinityWeigher(Weigher):
    """Number of group members on the host, more is better."""

    option = "soft_affinity_weight_multiplier"
    policy = SOFT_AFFINITY
    sign = 1.0
    depends_on = Scope.TABLE  # a host may have several nodes; a member on one node counts for all of them

    def applies(self, request: Request) -> bool:
        return request.policy == self.policy

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        return self.sign * view.by_host(request.group_hosts)


class ServerGroupSoftAntiAffinityWeigher(ServerGroupSoftAffinityWeigher):
    """Number of group members on the host, fewer is better."""

    option = "soft_anti_affinity_weight_multiplier"
    policy = SOFT_ANTI_AFFINITY
    sign = -1.0
