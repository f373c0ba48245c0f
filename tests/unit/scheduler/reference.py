"""A slow and plain reference scheduler, server by server, whose results planning must equal."""

from __future__ import annotations

import msgspec

from nova.objects.hosts.scheduling import HostState, RequestSpec

MULTIPLIERS = {"ram": 1.0, "cpu": 1.0, "disk": 1.0, "io_ops": -1.0, "num_instances": -0.5, "build_failure": 1000000.0,
               "hypervisor_version": 1.0, "soft_affinity": 1.0, "soft_anti_affinity": 1.0}


def feasible(host: HostState, spec: RequestSpec, members: dict[str, int], most_io_ops: int) -> bool:
    if not host.up or host.disabled or host.num_io_ops >= most_io_ops:
        return False
    for name, amount in spec.resources.items():
        inventory = host.inventories.get(name)
        if inventory is None:
            return False
        if inventory.used + amount > (inventory.total - inventory.reserved) * inventory.ratio:
            return False
        if not inventory.min_unit <= amount <= inventory.max_unit or amount % inventory.step_size:
            return False
    if spec.group and spec.group.policy == "affinity" and members and host.host not in members:
        return False
    return not (spec.group and spec.group.policy == "anti-affinity"
                and members.get(host.host, 0) >= spec.group.max_server_per_host)


def raw(host: HostState, spec: RequestSpec, members: dict[str, int]) -> dict[str, float]:
    def left(name: str, overcommit: bool) -> float:
        inventory = host.inventories.get(name)
        if inventory is None:
            return 0.0
        return (inventory.total - inventory.reserved) * (inventory.ratio if overcommit else 1) - inventory.used

    policy = spec.group.policy if spec.group else ""
    return {
        "ram": left("MEMORY_MB", False), "cpu": left("VCPU", True), "disk": left("DISK_GB", False) * 1024,
        "io_ops": host.num_io_ops, "num_instances": host.num_instances, "build_failure": host.failed_builds,
        "hypervisor_version": host.hypervisor_version,
        "soft_affinity": members.get(host.host, 0) if policy == "soft-affinity" else 0,
        "soft_anti_affinity": -members.get(host.host, 0) if policy == "soft-anti-affinity" else 0}


def multiplier(host: HostState, name: str) -> float:
    key = f"{name}_weight_multiplier"
    values = [float(metadata[key]) for metadata in host.aggregates if key in metadata]
    value = min(values, default=MULTIPLIERS[name])
    return -value if name == "build_failure" else value


def plan(hosts: list[HostState], spec: RequestSpec, most_io_ops: int) -> list[str] | None:
    """Return the nodes for the servers, or None if not all servers fit."""
    hosts = list(hosts)
    members = dict(spec.group.hosts) if spec.group else {}
    chosen = []
    for _ in spec.instance_uuids:
        fitting = [host for host in hosts if feasible(host, spec, members, most_io_ops)]
        if not fitting:
            return None
        columns = [raw(host, spec, members) for host in fitting]
        total = [0.0] * len(fitting)
        for name in MULTIPLIERS:
            column = [scores[name] for scores in columns]
            low, high = min(column), max(column)
            if name in ("ram", "cpu", "disk", "io_ops"):
                low = min(low, 0.0)
            if high > low:
                for index, host in enumerate(fitting):
                    total[index] += multiplier(host, name) * ((column[index] - low) / (high - low))
        best = fitting[total.index(max(total))]
        chosen.append(best.node_uuid)
        inventories = {
            name: msgspec.structs.replace(inventory, used=inventory.used + spec.resources.get(name, 0))
            for name, inventory in best.inventories.items()}
        hosts[hosts.index(best)] = msgspec.structs.replace(
            best, inventories=inventories, num_instances=best.num_instances + 1, num_io_ops=best.num_io_ops + 1)
        members[best.host] = members.get(best.host, 0) + 1
    return chosen
