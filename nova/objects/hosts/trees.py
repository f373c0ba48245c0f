"""Allocation of requested resources from the tree of resource providers of a host. Pure functions for schedulers and
for claims, which hold the lock on the node's row."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nova.objects.hosts.node import Inventory, Provider
from nova.objects.hosts.scheduling import RequestGroup

_MOST_TRIES = 5000  # maximum number of combinations tried: with many groups and providers there are far more

Allocation = dict[str, dict[str, int]]  # provider uuid -> resource class -> amount


@dataclasses.dataclass(frozen=True)
class Amounts:
    """Amounts requested from a provider tree. One provider serves each class of ``resources``, and one each of
    ``groups``. The root and the providers of ``resources`` must have the ``required`` and no ``forbidden`` traits.
    ``isolate``: a distinct provider for each group."""

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    groups: Sequence[RequestGroup] = ()
    isolate: bool = False


def allocate(tree: Sequence[Provider], wanted: Amounts) -> Allocation | None:
    """Return the allocation, preferably from the root (first in ``tree``), or None if the tree cannot provide it."""
    demands = [_Demand({name: amount}) for name, amount in wanted.resources.items() if amount]
    demands += [_Demand(group.resources, frozenset(group.required), frozenset(group.forbidden), number)
              for number, group in enumerate(wanted.groups)]
    choices = [[provider for provider in tree if demand.fits(provider, {})] for demand in demands]
    # The demand with the fewest providers is allocated first. Sorting is stable, so equal demands keep the request's
    # order.
    order = sorted(range(len(demands)), key=lambda index: len(choices[index]))
    tries = iter(range(_MOST_TRIES))
    choosing = [(demands[index], choices[index]) for index in order]
    for allocation, common in _combinations(choosing, wanted.isolate, {}, {}, tries):
        if _has_traits(tree, wanted, common):
            return {uuid: amounts for uuid, amounts in allocation.items() if amounts}
    return None


def with_usage(providers: Sequence[Provider], used: Mapping[str, Mapping[str, int]]) -> list[Provider]:
    """Return the providers with this usage (uuid -> resource class -> amount). Providers without an entry do not
    change."""
    return [_with(provider, used.get(provider.uuid, {})) for provider in providers]


def taken_from(providers: Sequence[Provider], allocation: Allocation) -> list[Provider]:
    """Return the providers with ``allocation`` added to their usage."""
    return [_with(provider, {name: provider.inventories[name].used + amount
                             for name, amount in allocation.get(provider.uuid, {}).items()}) for provider in providers]


def _with(provider: Provider, used: Mapping[str, int]) -> Provider:
    if not used:
        return provider
    return msgspec.structs.replace(provider, inventories={
        name: msgspec.structs.replace(inventory, used=used.get(name, inventory.used))
        for name, inventory in provider.inventories.items()})


@dataclasses.dataclass(frozen=True)
class _Demand:
    """Resources that must come from one provider. ``group`` None: un-numbered resources."""

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    group: int | None = None

    def fits(self, provider: Provider, taken: Mapping[str, int]) -> bool:
        """Return True if the provider has room, in addition to what the same request has ``taken`` from it."""
        traits = set(provider.traits)
        return self.required <= traits and not self.forbidden & traits and all(
            name in provider.inventories and _has_room(provider.inventories[name], amount + taken.get(name, 0))
            for name, amount in self.resources.items() if amount)


def _has_room(inventory: Inventory, amount: int) -> bool:
    return (inventory.used + amount <= (inventory.total - inventory.reserved) * inventory.ratio
            and inventory.min_unit <= amount <= inventory.max_unit and amount % max(inventory.step_size, 1) == 0)


def _combinations(demands: Sequence[tuple[_Demand, list[Provider]]], isolate: bool, total: Allocation,
                  sources: dict[int, str], tries: Iterator[int]) -> Iterator[tuple[Allocation, set[str]]]:
    """Yield all allocations of ``demands``, each with the providers of its un-numbered resources. ``sources``: group ->
    already chosen provider (negative keys: un-numbered resources)."""
    if not demands:
        yield total, {uuid for group, uuid in sources.items() if group < 0}
        return
    demand, providers = demands[0]
    group = demand.group if demand.group is not None else -1 - len(sources)
    for provider in providers:
        if next(tries, None) is None:
            return
        taken = total.get(provider.uuid, {})
        used = isolate and group >= 0 and provider.uuid in [uuid for other, uuid in sources.items() if other >= 0]
        if used or not demand.fits(provider, taken):
            continue
        more = {name: taken.get(name, 0) + amount for name, amount in demand.resources.items() if amount}
        yield from _combinations(demands[1:], isolate, {**total, provider.uuid: {**taken, **more}},
                                 {**sources, group: provider.uuid}, tries)


def _has_traits(tree: Sequence[Provider], wanted: Amounts, common: set[str]) -> bool:
    traits = {trait for provider in tree if provider is tree[0] or provider.uuid in common
              for trait in provider.traits}
    return wanted.required <= traits and not wanted.forbidden & traits
