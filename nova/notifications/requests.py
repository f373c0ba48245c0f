"""Payloads of notifications about scheduling: queries to schedulers, and operations that found no host."""

import dataclasses
from typing import Any

from nova.notifications.versioned import Payload, failure, fields, flavor, wrapped
from nova.objects.dedicated_resources.numa import GuestCell, GuestTopology
from nova.objects.hosts.scheduling import GroupSpec, RequestSpec
from nova.objects.images.image import Image
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance

_PREFIXES = ("hw_", "os_", "img_", "traits_required")  # prefixes of image properties that the payload includes


@dataclasses.dataclass
class SchedulerQuery:
    """A query to schedulers. ``succeeded``: True if the schedulers returned hosts."""

    spec: RequestSpec
    succeeded: bool = False


def request(spec: RequestSpec, of: Instance) -> Payload:
    """Return the RequestSpecPayload of a query for the server ``of``, or for several servers if ``spec`` lists them."""
    uuid = spec.instance_uuids[0] if spec.instance_uuids else of.uuid
    return wrapped("RequestSpecPayload", "1.1", {
        "instance_uuid": uuid, "project_id": spec.project_id, "user_id": spec.user_id or of.user_id,
        "availability_zone": spec.availability_zone, "flavor": flavor(spec.flavor),
        "force_hosts": [spec.force_host] if spec.force_host else None,
        "force_nodes": [spec.force_node] if spec.force_node else None,
        "ignore_hosts": list(spec.ignore_hosts) or None, "image": _image(spec.image),
        "instance_group": _group(spec.group, spec, of) if spec.group else None,
        "numa_topology": _topology(spec.numa_topology, uuid) if spec.numa_topology else None,
        "pci_requests": wrapped("InstancePCIRequestsPayload", "1.0", {
            "instance_uuid": uuid, "requests": [wrapped("InstancePCIRequestPayload", "1.1", {
                "count": pci.count, "spec": [dict(pci_spec) for pci_spec in pci.specs], "alias_name": pci.alias,
                "request_id": None, "numa_policy": pci.numa_policy}) for pci in spec.pci_requests]}),
        "num_instances": max(1, len(spec.instance_uuids)),
        "requested_destination": wrapped("DestinationPayload", "1.0", {
            "aggregates": None, "cell": None, "host": spec.requested_host, "node": spec.requested_node,
        }) if spec.requested_host or spec.requested_node else None,
        "retry": None,
        "scheduler_hints": {name: [str(item) for item in (value if isinstance(value, list) else [value])]
                            for name, value in spec.hints.items()},
        "security_groups": list(of.security_groups)})


def _image(of: Image | None) -> Payload | None:
    if of is None:
        return None
    return wrapped("ImageMetaPayload", "1.0", {
        **fields(of, "id name status visibility protected checksum owner size virtual_size container_format "
                     "disk_format created_at updated_at min_ram min_disk"), "tags": [], "direct_url": None,
        "properties": wrapped("ImageMetaPropsPayload", "1.20", {
            name: value for name, value in of.properties.items() if name.startswith(_PREFIXES)})})


def _group(group: GroupSpec, spec: RequestSpec, of: Instance) -> Payload:
    return wrapped("ServerGroupPayload", "1.1", {
        "uuid": group.uuid, "name": None, "user_id": of.user_id, "project_id": spec.project_id,
        "policies": [group.policy], "policy": group.policy,
        "rules": {"max_server_per_host": str(group.max_server_per_host)}, "members": None,
        "hosts": sorted(group.hosts)})


def _topology(of: GuestTopology, uuid: str) -> Payload:
    return wrapped("InstanceNUMATopologyPayload", "1.0", {
        "cells": [_cell(cell, of) for cell in of.cells], "emulator_threads_policy": of.emulator_policy or None,
        "instance_uuid": uuid})


def _cell(cell: GuestCell, of: GuestTopology) -> Payload:
    return wrapped("InstanceNUMACellPayload", "1.2", {
        "id": cell.id, "cpuset": sorted(cell.cpus), "pcpuset": sorted(cell.pcpus), "memory": cell.memory_mb,
        "pagesize": cell.pagesize_kb, "cpu_topology": None, "cpuset_reserved": None,
        "cpu_pinning_raw": {str(guest): host for guest, host in cell.pinning.items()} or None,
        "cpu_policy": "dedicated" if cell.pcpus else None, "cpu_thread_policy": of.thread_policy or None})


def task(spec: RequestSpec, of: Instance, state: str, reason: Failure) -> Payload:
    """Return the ComputeTaskPayload of an operation that found no host. ``state``: the vm_state of the server."""
    return wrapped("ComputeTaskPayload", "1.0", {
        "instance_uuid": of.uuid, "request_spec": request(spec, of), "state": state, "reason": failure(reason)})


# --- unversioned ----------------------------------------------------------------------------------------
def old_request(spec: RequestSpec, of: Instance) -> dict[str, Any]:
    image = {"id": spec.image.id, "name": spec.image.name, "properties": dict(spec.image.properties)} \
        if spec.image else {}
    return {"image": image, "instance_properties": _properties(of), "num_instances": max(1, len(spec.instance_uuids)),
            "instance_type": fields(spec.flavor, "flavorid name vcpus memory_mb root_gb ephemeral_gb swap")}


def _properties(of: Instance) -> dict[str, Any]:
    return fields(of, "uuid project_id user_id display_name availability_zone host vm_state reservation_id")


def old_task(method: str, spec: RequestSpec, of: Instance, state: str, reason: Failure) -> dict[str, Any]:
    return {"request_spec": old_request(spec, of), "instance_properties": _properties(of), "instance_id": of.uuid,
            "state": state, "method": method, "reason": reason.message}
