"""The packet filters of a security group as nftables commands, shared by all guests of the group on a host.

The chains of a guest jump to the chains of its groups. The members of a group are a set, so that a new or deleted
server changes elements of a set and no rule."""

from __future__ import annotations

from collections.abc import Sequence

from nova.common import plain_ip
from nova.network.linux import ingress
from nova.network.linux.filters import mac_address
from nova.objects.networks.network import GroupFilter

# Prefix of the names of group chains. No other chain has this prefix.
PREFIX = "group"
_CHAINS = {4: PREFIX, 6: f"{PREFIX}6"}


def jumps(group_ids: Sequence[int], version: int) -> list[str]:
    """Return the rules of a guest that jump to the chains of these groups, for one version of IP."""
    return [f"jump {_CHAINS[version]}_{group_id:d}" for group_id in group_ids]


def ensure_chains(table: str, group_id: int) -> list[str]:
    """Create the chains of a group, empty, unless they exist."""
    return [f"add chain bridge {table} {chain}_{group_id:d}" for chain in _CHAINS.values()]


def replace(table: str, group: GroupFilter) -> list[str]:
    """Replace the chains and the members of a group. Raises ValueError for invalid values."""
    t = f"bridge {table}"
    lines = [*ensure_chains(table, group.id), *(f"flush chain {t} {chain}_{group.id:d}" for chain in _CHAINS.values())]
    lines += [line for other in sorted({group.id, *group.named()}) for line in _sets(table, other)]
    members = [(mac_address(mac), plain_ip.address(member))
               for mac, member in zip(group.macs, group.members, strict=False)]
    for version, chain in _CHAINS.items():
        name = ingress.members(group.id, version)
        elements = ", ".join(f"{mac} . {member}" for mac, member in members if member.version == version)
        lines += [f"flush set {t} {name}", *([f"add element {t} {name} {{ {elements} }}"] if elements else [])]
        lines += [f"add rule {t} {chain}_{group.id:d} {rule}" for rule in ingress.accepted(group.rules, version)]
    return lines


def remove(table: str, group_ids: Sequence[int]) -> list[str]:
    """Remove the chains and sets of groups that no guest and no other group uses."""
    t = f"bridge {table}"
    chains = [f"{chain}_{group_id:d}" for group_id in group_ids for chain in _CHAINS.values()]
    return [
        *(line for group_id in group_ids for line in (*ensure_chains(table, group_id), *_sets(table, group_id))),
        *(f"flush chain {t} {chain}" for chain in chains), *(f"delete chain {t} {chain}" for chain in chains),
        *(f"delete set {t} {ingress.members(group_id, version)}" for group_id in group_ids for version in _CHAINS),
    ]


def _sets(table: str, group_id: int) -> list[str]:
    return [f"add set bridge {table} {ingress.members(group_id, version)} {{ type ether_addr . {kind}; }}"
            for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr"))]
