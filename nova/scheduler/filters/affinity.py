"""Filters by the location of other servers: server groups, and hints about servers and addresses."""

import ipaddress

import numpy as np

from nova.common import plain_ip
from nova.objects.hosts.scheduling import AFFINITY, ANTI_AFFINITY, DIFFERENT_HOST, SAME_HOST
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter, everything
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class ServerGroupAffinityFilter(Filter):
    """Policy affinity: hosts that already have members of the group, or any host if the group has no members."""

    policy = AFFINITY
    depends_on = Scope.TABLE
    refusal = "the server group is on another host"

    def applies(self, request: Request) -> bool:
        return request.policy == self.policy

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        hosts = [host for host, members in request.group_hosts.items() if members > 0]
        return view.on_hosts(hosts) if hosts else everything(view)


class ServerGroupAntiAffinityFilter(ServerGroupAffinityFilter):
    """Policy anti-affinity: hosts with fewer members than the group's max_server_per_host."""

    policy = ANTI_AFFINITY
    refusal = "the host already has the maximum number of servers of the server group"

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        assert request.spec.group is not None
        fits: BoolColumn = view.by_host(request.group_hosts) < max(request.spec.group.max_server_per_host, 1)
        return fits


class SameHostFilter(Filter):
    """Hint same_host: the hosts of these servers. Unknown servers have no host."""

    depends_on = Scope.REQUEST
    claim_hint = SAME_HOST
    refusal = "none of the servers of the hint same_host is on the host"

    def applies(self, request: Request) -> bool:
        return bool(request.spec.hint(self.claim_hint))

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        hosts = request.spec.hint_hosts
        return view.on_hosts({hosts[uuid] for uuid in request.spec.hint(self.claim_hint) if uuid in hosts})


class DifferentHostFilter(SameHostFilter):
    """Hint different_host: all hosts except those of these servers."""

    claim_hint = DIFFERENT_HOST
    refusal = "a server of the hint different_host is on the host"

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return ~super().mask(view, request)


class SimpleCIDRAffinityFilter(Filter):
    """Hints build_near_host_ip and cidr (default /24): hosts with an address in that network."""

    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        return bool(request.spec.hint("build_near_host_ip"))

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        network = self._network(request)
        if network is None:
            return np.zeros(len(view), np.bool_)

        def near(text: str) -> bool:
            try:
                return plain_ip.address(text) in network
            except ValueError:
                return False

        return view.lift("host_ip", near)

    @staticmethod
    def _network(request: Request) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
        prefix = next(iter(request.spec.hint("cidr")), "/24").removeprefix("/")
        try:
            return plain_ip.network(f"{request.spec.hint('build_near_host_ip')[0]}/{prefix}", strict=False)
        except ValueError:
            return None

    def reason(self, view: FleetView, request: Request) -> str:
        network = self._network(request)
        return f"the host's address is not in {network}" if network else "the hints name no network"
