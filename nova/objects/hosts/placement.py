"""Requests and answers of the Placement API: providers, consumers and their allocations, allocation candidates."""

from __future__ import annotations

from nova.objects.base import Object
from nova.objects.hosts.node import Inventory

# Kinds of registered names: of traits, of resource classes, and of external providers (which are thereby unique).
TRAIT, RESOURCE_CLASS, PROVIDER = "trait", "class", "provider"
CUSTOM = "CUSTOM_"  # the prefix of names that are not standard
INSTANCE, MIGRATION, UNKNOWN = "INSTANCE", "MIGRATION", "unknown"  # types of consumers

Resources = dict[str, int]  # resource class -> amount
# Lists of names: at least one name of each list is required. [["A"], ["B", "C"]] is A and (B or C).
AnyOf = list[list[str]]


class ProviderView(Object, kw_only=True):
    """A resource provider. ``generation``: version of its row, or of the row of its compute node. ``aggregates``: uuids
    of aggregates. In lists of providers, inventories, traits and aggregates are missing."""

    uuid: str
    name: str
    generation: int
    root_uuid: str
    parent_uuid: str | None = None
    inventories: dict[str, Inventory] = {}
    traits: list[str] = []
    aggregates: list[str] = []


class ProviderFilter(Object, kw_only=True):
    """Conditions for providers; ``in_tree``: uuid of any provider of the tree."""

    uuid: str | None = None
    name: str | None = None
    in_tree: str | None = None
    resources: Resources = {}
    required: AnyOf = []
    forbidden: list[str] = []
    member_of: AnyOf = []
    not_member_of: list[str] = []


class RequestedGroup(Object, kw_only=True):
    """Resources requested together. With suffix "", each resource class may come from any provider of the tree, and
    these providers together must have the required traits. With other suffixes, one provider must have everything."""

    suffix: str = ""
    resources: Resources = {}
    required: AnyOf = []
    forbidden: list[str] = []
    member_of: AnyOf = []
    not_member_of: list[str] = []
    in_tree: str | None = None


class CandidateRequest(Object, kw_only=True):
    """A request for allocation candidates. ``isolate``: a different provider for each suffixed group. ``nested`` False:
    root providers only. ``same_subtree``: lists of suffixes; one provider per list is an ancestor of the others."""

    groups: list[RequestedGroup]
    isolate: bool = False
    nested: bool = True
    limit: int
    root_required: list[str] = []
    root_forbidden: list[str] = []
    same_subtree: list[list[str]] = []


class Candidate(Object, kw_only=True):
    """A possible allocation: amounts by provider, and the providers of each group by suffix."""

    allocations: dict[str, Resources]
    mappings: dict[str, list[str]] = {}


class Candidates(Object, kw_only=True):
    """Allocation candidates, and all providers of their trees."""

    candidates: list[Candidate] = []
    providers: list[ProviderView] = []


class ConsumerView(Object, kw_only=True):
    """The allocations of a consumer; ``providers``: uuid -> generation of each provider."""

    uuid: str
    generation: int
    type: str
    project_id: str
    user_id: str
    allocations: dict[str, Resources]
    providers: dict[str, int] = {}


class ConsumerChange(Object, kw_only=True):
    """New allocations of a consumer, which replace the present ones ({}: remove them). ``generation``: expected version
    of the consumer (None: it must be new), which is compared if ``checked``. ``type`` None: unchanged."""

    uuid: str
    allocations: dict[str, Resources] = {}
    project_id: str = ""
    user_id: str = ""
    type: str | None = None
    generation: int | None = None
    checked: bool = False


class TypeUsage(Object, kw_only=True):
    """The usage of a project by consumers of one type."""

    consumers: int = 0
    resources: Resources = {}
