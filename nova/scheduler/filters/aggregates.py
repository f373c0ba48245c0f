"""Filters by aggregate metadata, and isolated hosts."""

from nova.scheduler import attributes
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView

Metadata = list[dict[str, str]]


def items(text: str) -> list[str]:
    """Return the items of a comma-separated list."""
    return [item.strip() for item in text.split(",")]


def gathered(aggregates: Metadata) -> dict[str, set[str]]:
    """Return key -> all values of the host's aggregates, with comma-separated lists split."""
    values: dict[str, set[str]] = {}
    for metadata in aggregates:
        for key, value in metadata.items():
            values.setdefault(key, set()).update(items(value))
    return values


class _AggregateFilter(Filter):
    """Base of filters that only use the metadata of the host's aggregates."""

    by_aggregates = True
    depends_on = Scope.REQUEST

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return view.lift("aggregates", lambda aggregates: self.fits(aggregates, request))

    def fits(self, aggregates: Metadata, request: Request) -> bool:
        raise NotImplementedError


class AggregateInstanceExtraSpecsFilter(_AggregateFilter):
    """Extra specs (unscoped, or scoped aggregate_instance_extra_specs:) must each match a value of the aggregates."""

    def applies(self, request: Request) -> bool:
        return bool(self._wanted(request))

    @staticmethod
    def _wanted(request: Request) -> dict[str, str]:
        wanted = {}
        for key, value in request.extra_specs.items():
            scope, colon, name = key.partition(":")
            if not colon:
                wanted[key] = value
            elif scope == "aggregate_instance_extra_specs":
                wanted[name] = value
        return wanted

    def fits(self, aggregates: Metadata, request: Request) -> bool:
        have = gathered(aggregates)
        return all(any(attributes.satisfies(value, wanted) for value in have.get(key, ()))
                   for key, wanted in self._wanted(request).items())

    def reason(self, view: FleetView, request: Request) -> str:
        have = gathered(view.text("aggregates", 0))
        refused = [key for key, wanted in self._wanted(request).items()
                   if not any(attributes.satisfies(value, wanted) for value in have.get(key, ()))]
        return f"the host's aggregates do not offer {', '.join(sorted(refused))}"


class AggregateImagePropertiesIsolation(_AggregateFilter):
    """An image property that an aggregate of the host has as metadata must have one of the comma-separated values."""

    in_place = True
    refusal = "the host's aggregates are for images with other properties"

    def applies(self, request: Request) -> bool:
        return bool(request.properties)

    def fits(self, aggregates: Metadata, request: Request) -> bool:
        prefix = request.settings.isolation_prefix
        for key, allowed in gathered(aggregates).items():
            if key.startswith(prefix):
                value = request.properties.get(key.removeprefix(prefix))
                if value is not None and value not in allowed:
                    return False
        return True


class AggregateMultiTenancyIsolation(_AggregateFilter):
    """Hosts of aggregates with filter_tenant_id* metadata are reserved for the projects named there."""

    refusal = "the host is for other projects"

    def fits(self, aggregates: Metadata, request: Request) -> bool:
        projects = tenants(aggregates)
        return not projects or request.spec.project_id in projects


def tenants(aggregates: Metadata) -> set[str]:
    """Return the projects named in filter_tenant_id* metadata."""
    return {project for metadata in aggregates for key, value in metadata.items()
            if key.startswith("filter_tenant_id") for project in items(value)}


class AggregateTypeAffinityFilter(_AggregateFilter):
    """Hosts of aggregates with instance_type metadata are reserved for the flavors named there."""

    refusal = "the host is for other flavors"

    def fits(self, aggregates: Metadata, request: Request) -> bool:
        names = gathered(aggregates).get("instance_type")
        return names is None or request.flavor.name in names


class IsolatedHostsFilter(Filter):
    """Isolated images use isolated hosts only. Isolated hosts accept no other images, unless
    restrict_isolated_hosts_to_isolated_images is false."""

    in_place = True
    depends_on = Scope.REQUEST

    def applies(self, request: Request) -> bool:
        return bool(request.settings.isolated_images or request.settings.isolated_hosts)

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        isolated = view.on_hosts(request.settings.isolated_hosts)
        if request.image is not None and request.image.id in request.settings.isolated_images:
            return isolated
        return ~isolated if request.settings.restrict_isolated_hosts_to_isolated_images else isolated | True

    def reason(self, view: FleetView, request: Request) -> str:
        isolated = view.text("host", 0) in request.settings.isolated_hosts
        return "the host is for isolated images" if isolated else "the image is for isolated hosts"
