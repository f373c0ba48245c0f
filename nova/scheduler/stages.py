"""Filters that cannot be disabled: requested hosts, traits, aggregates, free resources."""

import numpy as np

from nova.objects.hosts import trees
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.aggregates import Metadata, tenants
from nova.scheduler.filters.base import Filter, everything
from nova.scheduler.filters.service import AvailabilityZoneFilter
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class _Stage(Filter):
    depends_on = Scope.REQUEST


class IgnoredHosts(_Stage):
    """Excludes the hosts and nodes that the request ignores."""

    refusal = "the host was tried already or is excluded by the request"

    def applies(self, request: Request) -> bool:
        return bool(request.spec.ignore_hosts or request.spec.ignore_nodes)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        mask = ~view.on_hosts(request.spec.ignore_hosts)
        if request.spec.ignore_nodes:
            mask &= ~view.lift("node", set(request.spec.ignore_nodes).__contains__)
        return mask


class RequestedHost(_Stage):
    """Accepts only the host and node named in the request. Names of forced hosts are compared case-insensitively."""

    refusal = "the request names another host"

    def applies(self, request: Request) -> bool:
        spec = request.spec
        return bool(spec.force_host or spec.force_node or spec.requested_host or spec.requested_node)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        spec, mask = request.spec, everything(view)
        if spec.force_host:
            forced = spec.force_host.lower()
            mask &= view.lift("host", lambda host: host.lower() == forced)
        if spec.requested_host:
            mask &= view.on_hosts([spec.requested_host])
        for node in (spec.force_node, spec.requested_node):
            if node:
                mask &= view.lift("node", node.__eq__)
        return mask


class DisabledHosts(_Stage):
    """Excludes hosts whose service is disabled, even if they are forced."""

    refusal = "the compute service is disabled"

    def applies(self, request: Request) -> bool:
        return request.spec.forced  # other requests pass the ComputeFilter, which excludes these hosts

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return ~view.disabled


class Traits(_Stage):
    """Accepts nodes with all required traits and no forbidden trait."""

    def applies(self, request: Request) -> bool:
        return bool(request.required_traits or request.forbidden_traits)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        required, forbidden = request.required_traits, request.forbidden_traits
        mask: BoolColumn = view.lift(
            "traits", lambda traits: required.issubset(traits) and forbidden.isdisjoint(traits))
        return mask | view.has_children(request.resources) if view.any_children(request.resources) else mask

    def reason(self, view: FleetView, request: Request) -> str:
        have = set(view.text("traits", 0))
        missing, unwanted = request.required_traits - have, request.forbidden_traits & have
        reasons = [f"lacks {', '.join(sorted(missing))}"] if missing else []
        reasons += [f"has {', '.join(sorted(unwanted))}"] if unwanted else []
        return "the host " + " and ".join(reasons)


class TenantAggregates(_Stage):
    """A project named in filter_tenant_id* metadata of aggregates may only use hosts of these aggregates."""

    by_aggregates = True
    refusal = "no aggregate of the host is for the project"

    def applies(self, request: Request) -> bool:
        return request.settings.limit_tenants_to_placement_aggregate

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        own = view.lift("aggregates", lambda aggregates: request.spec.project_id in tenants(aggregates))
        if own.any() or request.settings.placement_aggregate_required_for_tenants:
            return own
        return everything(view)


class IsolatedAggregates(_Stage):
    """Hosts of aggregates with trait:X=required metadata are reserved for servers that require all these traits."""

    by_aggregates = True

    def applies(self, request: Request) -> bool:
        return request.settings.enable_isolated_aggregate_filtering

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return view.lift("aggregates", lambda aggregates: _isolating(aggregates) <= request.required_traits)

    def reason(self, view: FleetView, request: Request) -> str:
        traits = _isolating(view.text("aggregates", 0)) - request.required_traits
        return f"the host is for servers that require {', '.join(sorted(traits))}"


def _isolating(aggregates: Metadata) -> set[str]:
    return {key.removeprefix("trait:") for metadata in aggregates for key, value in metadata.items()
            if key.startswith("trait:") and value == "required"}


class Room(Filter):
    """Accepts nodes with enough free capacity of a resource class whose units allow the requested amount."""

    def __init__(self, resource_class: str) -> None:
        self.resource_class = resource_class

    @property
    def name(self) -> str:
        return self.resource_class

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        name, amount = self.resource_class, request.resources[self.resource_class]
        offered: BoolColumn = view.inventory(name, "offered").astype(np.bool_, copy=False)
        mask: BoolColumn = offered & (view.used(name) + amount <= view.inventory(name, "capacity"))
        mask &= view.inventory(name, "min_unit") <= amount
        mask &= view.inventory(name, "max_unit") >= amount
        steps = view.inventory(name, "step_size")
        uneven = steps > 1
        if uneven.any():
            mask &= ~uneven | (amount % np.maximum(steps, 1) == 0)
        return mask | view.has_children(request.resources) if view.any_children(request.resources) else mask

    def reason(self, view: FleetView, request: Request) -> str:
        name, amount = self.resource_class, request.resources[self.resource_class]
        value = {field: view.inventory(name, field)[0] for field in ("offered", "min_unit", "max_unit", "step_size")}
        if not value["offered"]:
            return f"the host offers no {name}"
        free = float(view.free(name)[0])
        if amount > free:
            return f"requested {amount}, free {free:g}"
        return (f"requested {amount}, the host gives {value['min_unit']:g} to {value['max_unit']:g} "
                f"in steps of {value['step_size']:g}")


class Trees(Filter):
    """Accepts nodes whose provider tree has all requested resources, each group from one provider. The previous filters
    check root providers only and leave nodes with child providers to this filter."""

    costly = True
    refusal = "the resource providers of the host lack the requested resources"

    @property
    def name(self) -> str:
        return "ResourceProviders"

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        # If the root provider alone serves the request, the previous filters have checked it.
        return np.fromiter((
            view.root_gives(position, request) or trees.allocate(view.tree(position), request.amounts) is not None
            for position in range(len(view))), np.bool_, len(view))


_REQUESTED, _TRAITS = RequestedHost(), Traits()
_BEFORE: tuple[Filter, ...] = (IgnoredHosts(), _REQUESTED, DisabledHosts(), _TRAITS, TenantAggregates(),
                               IsolatedAggregates())
_ZONE = AvailabilityZoneFilter()
_TREES = Trees()


def chain(request: Request, filters: list[Filter], view: FleetView) -> list[Filter]:
    """Return the filters for this request, in order. Forced hosts skip the zone and the enabled filters."""
    providers = [_TREES] if request.amounts.groups or view.any_children(request.resources) else []
    if request.spec.in_place:
        checks = [_REQUESTED, _TRAITS, *(node_filter for node_filter in filters if node_filter.in_place), *providers]
        return [node_filter for node_filter in checks if node_filter.applies(request)]
    enabled = [] if request.spec.forced else [
        _ZONE, *(node_filter for node_filter in filters if not isinstance(node_filter, AvailabilityZoneFilter))]
    checks = [*_BEFORE, *enabled, *(Room(name) for name in sorted(request.resources)), *providers]
    return [node_filter for node_filter in checks if node_filter.applies(request)]
