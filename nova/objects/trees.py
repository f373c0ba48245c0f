"""A host's tree of resource providers, and from which of them a request gets what it asks for.

Pure functions, for schedulers and for the claim, which has the node's row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nova.objects.node import Inventory, Provider
from nova.objects.scheduling import RequestGroup

# Ways that are tried until one fits: with many groups and providers there are astronomically many.
_MOST_TRIES = 5000

# Provider uuid -> resource class -> amount.
Allocation = dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True)
class Amounts:
    """What is asked of a tree: ``resources`` of any providers (a class comes from one), each of ``groups`` of one.

    ``required`` traits are those of the root or of who gives ``resources``, none of which has a ``forbidden`` one.
    ``isolate``: another provider for each group.
    """

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    groups: Sequence[RequestGroup] = ()
    isolate: bool = False


def allocate(tree: Sequence[Provider], wanted: Amounts) -> Allocation | None:
    """Who gives what, from the root (the first of ``tree``) wherever it can; None: they cannot give it all."""
    parts = [_Part({name: amount}) for name, amount in wanted.resources.items() if amount]
    parts += [_Part(group.resources, frozenset(group.required), frozenset(group.forbidden), number)
              for number, group in enumerate(wanted.groups)]
    choices = [[one for one in tree if part.fits(one, {})] for part in parts]
    # Whoever has the least choice chooses first; sorting is stable, so the rest is in the order of the request.
    order = sorted(range(len(parts)), key=lambda index: len(choices[index]))
    tries = iter(range(_MOST_TRIES))
    for allocation in _ways([(parts[index], choices[index]) for index in order], wanted.isolate, {}, {}, tries):
        if _has_traits(tree, wanted, allocation):
            return {uuid: amounts for uuid, amounts in allocation.total.items() if amounts}
    return None


def with_usage(providers: Sequence[Provider], used: Mapping[str, Mapping[str, int]]) -> list[Provider]:
    """The same providers, of which so much is used (uuid -> resource class -> amount; others stay as they are)."""
    return [_with(one, used.get(one.uuid, {})) for one in providers]


def taken_from(providers: Sequence[Provider], allocation: Allocation) -> list[Provider]:
    """The same providers with ``allocation`` on top of what is used."""
    return [_with(one, {name: one.inventories[name].used + amount
                        for name, amount in allocation.get(one.uuid, {}).items()}) for one in providers]


def _with(provider: Provider, used: Mapping[str, int]) -> Provider:
    if not used:
        return provider
    return msgspec.structs.replace(provider, inventories={
        name: msgspec.structs.replace(inventory, used=used.get(name, inventory.used))
        for name, inventory in provider.inventories.items()})


@dataclasses.dataclass(frozen=True)
class _Part:
    """What comes from one provider; ``group`` None: of the un-numbered ones."""

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    group: int | None = None

    def fits(self, provider: Provider, taken: Mapping[str, int]) -> bool:
        """Beside what the same request has ``taken`` of it."""
        traits = set(provider.traits)
        return self.required <= traits and not self.forbidden & traits and all(
            name in provider.inventories and _has_room(provider.inventories[name], amount + taken.get(name, 0))
            for name, amount in self.resources.items() if amount)


def _has_room(inventory: Inventory, amount: int) -> bool:
    return (inventory.used + amount <= (inventory.total - inventory.reserved) * inventory.ratio
            and inventory.min_unit <= amount <= inventory.max_unit and amount % max(inventory.step_size, 1) == 0)


@dataclasses.dataclass(frozen=True)
class _Way:
    total: Allocation
    # The providers of un-numbered resources.
    common: frozenset[str]


def _ways(parts: Sequence[tuple[_Part, list[Provider]]], isolate: bool, total: Allocation, givers: dict[int, str],
          tries: Iterator[int]) -> Iterator[_Way]:
    """Every way to give out ``parts``; ``givers``: who gives each part so far, by group (below 0: no group)."""
    if not parts:
        yield _Way(total, frozenset(uuid for group, uuid in givers.items() if group < 0))
        return
    part, providers = parts[0]
    group = part.group if part.group is not None else -1 - len(givers)
    for one in providers:
        if next(tries, None) is None:
            return
        taken = total.get(one.uuid, {})
        mine = isolate and group >= 0 and one.uuid in [uuid for other, uuid in givers.items() if other >= 0]
        if mine or not part.fits(one, taken):
            continue
        more = {name: taken.get(name, 0) + amount for name, amount in part.resources.items() if amount}
        yield from _ways(parts[1:], isolate, {**total, one.uuid: {**taken, **more}}, {**givers, group: one.uuid}, tries)


def _has_traits(tree: Sequence[Provider], wanted: Amounts, way: _Way) -> bool:
    common = {trait for one in tree if one is tree[0] or one.uuid in way.common for trait in one.traits}
    return wanted.required <= common and not wanted.forbidden & common
