"""Allocation candidates of one tree of resource providers. Pure functions."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from nova.objects.hosts.node import Inventory
from nova.objects.hosts.placement import AnyOf, Candidate, CandidateRequest, ProviderView, RequestedGroup, Resources

_MOST_TRIES = 5000  # maximum number of combinations tried per tree: with many groups and providers there are far more


@dataclasses.dataclass(frozen=True)
class _Demand:
    """Resources of a request that must come from one provider, and the providers that have them."""

    group: RequestedGroup
    resources: Resources
    providers: list[ProviderView]


def has_room(inventory: Inventory | None, amount: int, taken: int = 0) -> bool:
    """Return True if ``amount`` can be allocated, in addition to ``taken`` of the same request."""
    return inventory is not None and (
        inventory.used + taken + amount <= (inventory.total - inventory.reserved) * inventory.ratio
        and inventory.min_unit <= amount <= inventory.max_unit and amount % max(inventory.step_size, 1) == 0)


def of_tree(tree: Sequence[ProviderView], request: CandidateRequest, budget: Iterator[int]) -> Iterator[Candidate]:
    """Yield the candidates of a tree without duplicates. ``budget``: each tried combination takes an item from this
    iterator, which all trees of a request share."""
    root = next((provider for provider in tree if provider.uuid == provider.root_uuid), None)
    if root is None or not set(request.root_required) <= set(root.traits) \
            or set(request.root_forbidden) & set(root.traits):
        return
    uuids = {provider.uuid for provider in tree}
    if any(group.in_tree is not None and group.in_tree not in uuids for group in request.groups):
        return
    offered = tree if request.nested else [root]
    demands = sorted((
        _Demand(group, resources, [provider for provider in offered if _fits(provider, root, group, resources)])
        for group in request.groups for resources in (
            [group.resources] if group.suffix else [{name: amount} for name, amount in group.resources.items()])),
        key=lambda demand: len(demand.providers))
    parents = {provider.uuid: provider.parent_uuid for provider in tree}
    by_uuid = {provider.uuid: provider for provider in tree}
    seen = set()
    for chosen in _choices(demands, request.isolate, {}, [], itertools.islice(budget, _MOST_TRIES)):
        candidate = _candidate(demands, chosen)
        if _together(request, candidate, by_uuid, parents):
            key = (_frozen(candidate.allocations), _frozen(candidate.mappings))
            if key not in seen:
                seen.add(key)
                yield candidate


def _fits(provider: ProviderView, root: ProviderView, group: RequestedGroup, resources: Resources) -> bool:
    # Aggregates of the root apply to its whole tree, except for suffixed groups (as the API reference says).
    traits, aggregates = set(provider.traits), {*provider.aggregates, *(() if group.suffix else root.aggregates)}
    return (not traits.intersection(group.forbidden) and (not group.suffix or satisfies(traits, group.required))
            and satisfies(aggregates, group.member_of) and not aggregates.intersection(group.not_member_of)
            and all(has_room(provider.inventories.get(name), amount) for name, amount in resources.items()))


def satisfies(names: set[str], required: AnyOf) -> bool:
    """Return True if ``names`` contains a member of every set."""
    return all(not names.isdisjoint(options) for options in required)


def _choices(demands: Sequence[_Demand], isolate: bool, taken: Mapping[tuple[str, str], int],
             chosen: list[ProviderView], tries: Iterator[int]) -> Iterator[list[ProviderView]]:
    """Yield all combinations of providers with enough room: lists with the provider of each demand, in the order of
    ``demands``. ``chosen``: providers of the first demands; ``taken``: the amounts that these demands use."""
    if len(chosen) == len(demands):
        yield chosen
        return
    demand = demands[len(chosen)]
    for provider in demand.providers:
        if next(tries, None) is None:
            return
        if isolate and demand.group.suffix and any(
                other.group.suffix and earlier.uuid == provider.uuid
                for other, earlier in zip(demands, chosen, strict=False)):
            continue
        if not all(has_room(provider.inventories.get(name), amount, taken.get((provider.uuid, name), 0))
                   for name, amount in demand.resources.items()):
            continue
        more = {(provider.uuid, name): taken.get((provider.uuid, name), 0) + amount
                for name, amount in demand.resources.items()}
        yield from _choices(demands, isolate, {**taken, **more}, [*chosen, provider], tries)


def _candidate(demands: Sequence[_Demand], chosen: Sequence[ProviderView]) -> Candidate:
    allocations: dict[str, Resources] = {}
    mappings: dict[str, list[str]] = {}
    for demand, provider in zip(demands, chosen, strict=True):
        uuids = mappings.setdefault(demand.group.suffix, [])
        if provider.uuid not in uuids:
            uuids.append(provider.uuid)
        for name, amount in demand.resources.items():
            amounts = allocations.setdefault(provider.uuid, {})
            amounts[name] = amounts.get(name, 0) + amount
    return Candidate(allocations=allocations, mappings={suffix: sorted(uuids) for suffix, uuids in mappings.items()})


def _together(request: CandidateRequest, candidate: Candidate, providers: Mapping[str, ProviderView],
              parents: Mapping[str, str | None]) -> bool:
    """Return True if the providers together have the traits of the un-suffixed group, and same_subtree is fulfilled."""
    for group in request.groups:
        if not group.suffix:
            traits = {trait for uuid in candidate.mappings.get("", ()) for trait in providers[uuid].traits}
            if not satisfies(traits, group.required):
                return False
    for suffixes in request.same_subtree:
        uuids = {uuid for suffix in suffixes for uuid in candidate.mappings.get(suffix, ())}
        if not any(all(top in _lineage(uuid, parents) for uuid in uuids) for top in uuids):
            return False
    return True


def _lineage(uuid: str, parents: Mapping[str, str | None]) -> set[str]:
    """Return a provider and its ancestors."""
    lineage: set[str] = set()
    at: str | None = uuid
    while at is not None and at not in lineage:
        lineage.add(at)
        at = parents.get(at)
    return lineage


def _frozen(values: Mapping[str, Mapping[str, int] | list[str]]) -> tuple[tuple[str, tuple[object, ...]], ...]:
    return tuple(sorted((key, tuple(sorted(value.items() if isinstance(value, Mapping) else value)))
                        for key, value in values.items()))
