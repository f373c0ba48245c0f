"""Validation of flavor extra specs, which the API applies from 2.86."""

import pytest

from nova.api.validation.extra_specs import BadSpec, UnknownSpec, validate

GOOD = [
    ("hw:cpu_policy", "dedicated"), ("hw:cpu_dedicated_mask", "0-3,^1"), ("hw:cpu_realtime_mask", "^0"),
    ("hw:mem_page_size", "large"), ("hw:mem_page_size", "2048"), ("hw:mem_page_size", "1GiB"),
    ("hw:mem_page_size", "2MB"), ("hw:numa_cpus.0", "0,1"), ("hw:numa_mem.10", "512"), ("hw:pmem", "a,b"),
    ("hw:redirected_usb_ports", "15"), ("hw:locked_memory", "True"), ("hw:locked_memory", "off"),
    ("hw:tpm_version", "2.0"), ("hw:watchdog_action", "disabled"), ("hide_hypervisor_id", "1"),
    ("hw_rng:allowed", "yes"), ("hw_rng:rate_bytes", "0"), ("hw_video:ram_max_mb", "64"),
    ("os:secure_boot", "required"), ("accel:device_profile", "mine"), ("pci_passthrough:alias", "gpu:1,nic:2"),
    ("group_policy", "isolate"), ("resources:VCPU", "2"), ("resources:CUSTOM_GOLD", "1"), ("resources1:VGPU", "1"),
    ("resources_NET:SRIOV_NET_VF", "1"), ("trait:HW_CPU_X86_AVX2", "required"), ("trait:CUSTOM_A", "forbidden"),
    ("trait1:COMPUTE_NODE", "required"), ("aggregate_instance_extra_specs:ssd", "true"),
    ("capabilities:cpu_info:features", "<in> aes"), ("capabilities:hypervisor_type", "QEMU"),
    ("quota:cpu_quota", "-1"), ("quota:cpu_shares", "1024"), ("quota:disk_io_shares_level", "high"),
    ("quota:vif_inbound_average", "10"), ("vmware:storage_policy", "p"),
    # Unknown namespaces and names without a namespace are not restricted.
    ("anything", "x"), ("my:own", "x"), ("traits:HW_ANYTHING", "x"), ("hw_other:x", "y"),
]
BAD_VALUES = [
    ("hw:cpu_policy", "none"), ("hw:cpu_cores", "0"), ("hw:cpu_cores", "two"), ("hw:cpu_cores", "1_0"),
    ("hw:numa_mem.0", "0"), ("hw:numa_cpus.0", "a"), ("hw:mem_page_size", "huge"), ("hw:redirected_usb_ports", "16"),
    ("hw:locked_memory", "maybe"), ("hw:tpm_version", "3.0"), ("hw_rng:rate_bytes", "-1"),
    ("os:secure_boot", "optional"), ("pci_passthrough:alias", "gpu"), ("group_policy", "both"),
    ("resources:VCPU", "many"), ("resources1:CUSTOM_GOLD", "-1"), ("trait:CUSTOM_A", "preferred"),
    ("quota:cpu_quota", "x"), ("quota:cpu_shares", "-1"), ("quota:vif_shares_level", "top"),
]
UNKNOWN = ["hw:nothing", "hw:numa_mem", "hw:maxphysaddr_bits", "quota:speed", "os:type", "capabilities:colour",
           "resources:GOLD", "resources1:GOLD", "trait:WINGS", "trait:custom_a", "accel:x", "vmware:x",
           "aggregate_instance_extra_specs:"]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_valid_and_unrestricted_extra_specs_are_accepted(name, value):
    validate(name, value)


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_invalid_extra_spec_value_is_refused_with_the_expected_format(name, value):
    with pytest.raises(BadSpec, match="expected") as caught:
        validate(name, value)
    assert f"'{value}'" in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_extra_spec_in_a_standard_namespace_is_refused(name):
    with pytest.raises(UnknownSpec, match="does not appear to be a valid extra spec"):
        validate(name, "1")
