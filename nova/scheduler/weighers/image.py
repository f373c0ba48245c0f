"""Weigher by the images of the servers on a host."""

from nova.scheduler.columns import FloatColumn
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView
from nova.scheduler.weighers.base import Weigher


class ImagePropertiesWeigher(Weigher):
    """Image properties shared with the images of the host's servers, weighted by image_props_weight_setting."""

    option = "image_props_weight_multiplier"
    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        return bool(request.spec.image_hosts)

    def scores(self, view: FleetView, request: Request) -> FloatColumn:
        ratios = request.settings.image_ratios
        weights: dict[str, float] = {}
        for name, hosts in request.spec.image_hosts.items():
            ratio = ratios.get(name, 0.0) if ratios else 1.0
            for host, count in hosts.items():
                weights[host] = weights.get(host, 0.0) + ratio * count
        return view.by_host(weights)
