"""The packet filters of a security group, as nftables commands: once on a host, however many guests are in it.

Guests jump to the chains of their groups. Who is in a group that rules name is a set, so that a server that comes or
goes changes the elements of one set and no rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from nova.network import ingress
from nova.network.filters import mac_address
from nova.objects import plain_ip
from nova.objects.network import GroupFilter

# What the chains of groups begin with, and no other chain.
PREFIX = "group"
_CHAINS = {4: PREFIX, 6: f"{PREFIX}6"}


def jumps(group_ids: Sequence[int], version: int) -> list[str]:
    """What the filters of a guest in these groups say of one version of IP."""
    return [f"jump {_CHAINS[version]}_{group_id:d}" for group_id in group_ids]


def there(table: str, group_id: int) -> list[str]:
    """The chains of a group, as they are; made, and empty, if there are none."""
    return [f"add chain bridge {table} {chain}_{group_id:d}" for chain in _CHAINS.values()]


def group(table: str, told: GroupFilter) -> list[str]:
    """The chains of a group and who is in it, made new. Raises ValueError for bad values."""
    t = f"bridge {table}"
    lines = [*there(table, told.id), *(f"flush chain {t} {chain}_{told.id:d}" for chain in _CHAINS.values())]
    lines += [line for other in sorted({told.id, *told.named()}) for line in _sets(table, other)]
    members = [(mac_address(mac), plain_ip.address(member))
               for mac, member in zip(told.macs, told.members, strict=False)]
    for version, chain in _CHAINS.items():
        name = ingress.members(told.id, version)
        found = ", ".join(f"{mac} . {member}" for mac, member in members if member.version == version)
        lines += [f"flush set {t} {name}", *([f"add element {t} {name} {{ {found} }}"] if found else [])]
        lines += [f"add rule {t} {chain}_{told.id:d} {rule}" for rule in ingress.accepted(told.rules, version)]
    return lines


def gone(table: str, group_ids: Sequence[int]) -> list[str]:
    """Remove all there may be about groups that no guest and no other group names."""
    t = f"bridge {table}"
    chains = [f"{chain}_{group_id:d}" for group_id in group_ids for chain in _CHAINS.values()]
    return [
        *(line for group_id in group_ids for line in (*there(table, group_id), *_sets(table, group_id))),
        *(f"flush chain {t} {chain}" for chain in chains), *(f"delete chain {t} {chain}" for chain in chains),
        *(f"delete set {t} {ingress.members(group_id, version)}" for group_id in group_ids for version in _CHAINS),
    ]


def _sets(table: str, group_id: int) -> list[str]:
    return [f"add set bridge {table} {ingress.members(group_id, version)} {{ type ether_addr . {kind}; }}"
            for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr"))]
