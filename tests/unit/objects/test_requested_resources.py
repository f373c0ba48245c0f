"""Resources of a host required by a flavor and an image."""

from __future__ import annotations

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.hosts.scheduling import RequestGroup
from nova.objects.images.image import Image
from nova.objects.requirements.requested_resources import Requested, request_spec, requested_resources
from nova.objects.servers.instance import Instance


def asked(extra_specs=None, properties=None, volume_backed=False, **sizes):
    values = {"memory_mb": 1024, "vcpus": 4, "root_gb": 10, **sizes}
    flavor = Flavor(flavorid="1", name="f", extra_specs=extra_specs or {}, **values)
    image = Image(id="i", properties=properties) if properties is not None else None
    return requested_resources(flavor, image, volume_backed)


def test_flavor_sizes_are_requested_resources():
    assert asked() == Requested({"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}, [], [], [], "none")
    assert asked(ephemeral_gb=5, swap=1025).resources["DISK_GB"] == 17
    assert asked(volume_backed=True, ephemeral_gb=5).resources["DISK_GB"] == 5
    assert "DISK_GB" not in asked(volume_backed=True).resources


@pytest.mark.parametrize(("extra_specs", "expected"), [
    ({"resources:VCPU": "2"}, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10}),
    ({"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0", "resources:CUSTOM_IRON": "1"},
     {"CUSTOM_IRON": 1}),
    ({"resources:VGPU": "1"}, {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10, "VGPU": 1}),
    ({"resources1:VGPU": "1", "resources_b:VGPU": "2", "resources:VGPU": "4", "group_policy": "none"},
     {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10, "VGPU": 7}),
    ({"resources1:VGPU": "0"}, {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}),
    ({"resources:PCPU": "4"}, {"PCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}),
    ({"hw:cpu_policy": "dedicated"}, {"PCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}),
    ({"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"},
     {"PCPU": 5, "MEMORY_MB": 1024, "DISK_GB": 10}),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"},
     {"PCPU": 3, "VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}),
    ({"hw:pmem": "BIG,small.one"}, {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10, "CUSTOM_PMEM_NAMESPACE_BIG": 1,
                                    "CUSTOM_PMEM_NAMESPACE_SMALL_ONE": 1}),
    ({"hw:mem_encryption": "true"}, {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10, "MEM_ENCRYPTION_CONTEXT": 1}),
    ({"unrelated:VCPU": "9"}, {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}),
])
def test_resource_extra_specs_change_the_requested_amounts(extra_specs, expected):
    assert asked(extra_specs).total == expected


def test_numbered_request_groups_are_separate():
    found = asked({"resources2:VGPU": "1", "trait2:CUSTOM_BIG": "required", "resources1:VGPU": "2",
                   "trait1:CUSTOM_OLD": "forbidden", "group_policy": "isolate", "trait:X": "required"})
    assert found.resources == {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}
    assert (found.required, found.forbidden, found.group_policy) == (["X"], [], "isolate")
    assert found.groups == [RequestGroup(resources={"VGPU": 2}, forbidden=["CUSTOM_OLD"]),
                            RequestGroup(resources={"VGPU": 1}, required=["CUSTOM_BIG"])]


def test_request_spec_contains_all_requirements_of_the_flavor():
    flavor = Flavor(flavorid="1", name="f", memory_mb=1024, vcpus=2, extra_specs={
        "hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:2", "resources1:VGPU": "1"})
    server = Instance(uuid="u", project_id="p", user_id="x", display_name="", hostname="", flavor=flavor,
                      created_at=utcnow())
    spec = request_spec(server, flavor, None, ['{"name": "nic", "vendor_id": "8086"}'], alternates=7)
    assert spec.resources == {"PCPU": 2, "MEMORY_MB": 1024}
    assert [group.resources for group in spec.groups] == [{"VGPU": 1}]
    assert spec.numa_topology.cells[0].pcpus == [0, 1]
    assert [(request.alias, request.count) for request in spec.pci_requests] == [("nic", 2)]
    assert (spec.instance_uuids, spec.project_id, spec.alternates) == (["u"], "p", 7)


@pytest.mark.parametrize(("extra_specs", "properties", "required", "forbidden"), [
    ({"trait:A": "required", "trait:B": "forbidden", "trait:C": "maybe"}, {}, ["A"], ["B"]),
    ({"trait1:A": "required"}, {}, ["A"], []),
    ({}, {"trait:X": "required", "trait:Y": "forbidden"}, ["X"], []),
    ({"hw:cpu_thread_policy": "require", "hw:cpu_policy": "dedicated"}, {}, ["HW_CPU_HYPERTHREADING"], []),
    ({"hw:cpu_policy": "dedicated"}, {"hw_cpu_thread_policy": "isolate"}, [], ["HW_CPU_HYPERTHREADING"]),
    ({"hw:virtio_packed_ring": "true"}, {}, ["COMPUTE_NET_VIRTIO_PACKED"], []),
    ({}, {"os_secure_boot": "required", "hw_firmware_type": "uefi"},
     ["COMPUTE_FIRMWARE_UEFI", "COMPUTE_SECURITY_UEFI_SECURE_BOOT"], []),
    ({"os:secure_boot": "disabled"}, {"os_secure_boot": "required"}, [], []),
    ({"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb"}, {},
     ["COMPUTE_SECURITY_TPM_2_0", "COMPUTE_SECURITY_TPM_CRB", "COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER"], []),
    ({"hw:mem_encryption": "1", "hw:mem_encryption_model": "intel-tdx"}, {}, ["HW_CPU_X86_INTEL_TDX"], []),
    ({"hw:maxphysaddr_mode": "emulate"}, {}, ["COMPUTE_ADDRESS_SPACE_EMULATED"], []),
    ({}, {"hw_firmware_stateless": "yes"}, ["COMPUTE_SECURITY_STATELESS_FIRMWARE"], []),
    ({"hw:ephemeral_encryption": "true", "hw:ephemeral_encryption_format": "luks"}, {},
     ["COMPUTE_EPHEMERAL_ENCRYPTION", "COMPUTE_EPHEMERAL_ENCRYPTION_LUKS"], []),
    ({"hw:sound_model": "virtio"}, {}, ["COMPUTE_SOUND_MODEL_VIRTIO"], []),
    ({"accel:device_profile": "x"}, {}, ["COMPUTE_ACCELERATORS"], []),
])
def test_traits_are_required_by_flavor_and_image(extra_specs, properties, required, forbidden):
    found = asked(extra_specs, properties)
    assert (found.required, found.forbidden) == (required, forbidden)


@pytest.mark.parametrize("extra_specs", [
    {"resources:VCPU": "many"}, {"resources:VCPU": "-1"}, {"resources1:VGPU": "1", "resources2:VGPU": "1"},
    {"resources:VCPU": "1" * 5000}, {"group_policy": "sometimes"},
    {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "a-b"}])
def test_invalid_resource_extra_specs_are_refused(extra_specs):
    with pytest.raises(exception.InvalidInput):
        asked(extra_specs)
