"""Filter by the image's requirements on the hypervisor."""

import operator
import re
from collections.abc import Callable
from typing import Any

from nova.objects.base import whole
from nova.objects.requirements.properties import canonical_architecture
from nova.scheduler import attributes
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter, everything
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView

_PREDICATE = re.compile(r"^\s*(<=|>=|==|!=|<|>)\s*([0-9]{1,9}(?:\.[0-9]{1,9})*)\s*$")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt,
                                                   ">=": operator.ge, "==": operator.eq, "!=": operator.ne}


class ImagePropertiesFilter(Filter):
    """Architecture, hypervisor type and mode of the image must match a guest type of the hypervisor. Also checks
    img_hv_requested_version (``>=2.6,<9``; a hypervisor of unknown version passes) and hw_maxphysaddr_bits."""

    in_place = True
    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        properties = request.properties
        return bool(self._wanted(request)) or "img_hv_requested_version" in properties \
            or "hw_maxphysaddr_bits" in properties

    @staticmethod
    def _wanted(request: Request) -> dict[int, str]:
        """Return the required values by position in a supported_instances triple."""
        properties, wanted = request.properties, {}
        architecture = properties.get("hw_architecture") or request.settings.image_properties_default_architecture
        if architecture:
            wanted[0] = canonical_architecture(architecture)
        if properties.get("img_hv_type"):
            wanted[1] = properties["img_hv_type"].lower()
        if properties.get("hw_vm_mode"):
            wanted[2] = properties["hw_vm_mode"].lower()
        return wanted

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        mask = everything(view)
        wanted = self._wanted(request)
        if wanted:
            mask &= view.lift("supported_instances", lambda triples: any(
                all(str(triple[index]).lower() == value for index, value in wanted.items()) for triple in triples))
        version = request.properties.get("img_hv_requested_version")
        if version:
            mask &= attributes.match(view, ["hypervisor_version"], lambda have: _version_matches(have, version))
        bits = whole(request.properties.get("hw_maxphysaddr_bits", ""))
        if bits is not None:
            mask &= attributes.match(view, ["cpu_info", "maxphysaddr", "bits"],
                                     lambda have: isinstance(have, int) and have >= bits)
        return mask

    def reason(self, view: FleetView, request: Request) -> str:
        names = ("hw_architecture", "img_hv_type", "hw_vm_mode", "img_hv_requested_version", "hw_maxphysaddr_bits")
        properties = [f"{name}={request.properties[name]}" for name in names if name in request.properties]
        return f"the hypervisor does not support the image's {', '.join(properties) or 'architecture'}"


def _version_matches(version: int, predicates: str) -> bool:
    """Return True if a hypervisor version (9001002 is 9.1.2) satisfies all predicates of a comma-separated list."""
    if version <= 0:
        return True
    have = (version // 1000000, version // 1000 % 1000, version % 1000)
    for predicate in predicates.split(","):
        match = _PREDICATE.match(predicate)
        if match is None:
            return False
        wanted = [int(number) for number in match[2].split(".")][:3]
        padded = tuple(wanted + [0] * (3 - len(wanted)))
        if not _COMPARE[match[1]](have, padded):
            return False
    return True
