"""PCI devices: aliases, pools of free devices, and allocation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova import exception
from nova.objects.dedicated_resources.pci import (
    PciDevice,
    PciPool,
    PciRequest,
    choose,
    free,
    parse_aliases,
    pools,
    requests,
    take,
)

NIC = {"vendor_id": "8086", "product_id": "1572"}


def device(number, numa_node=0, parent=None, dev_type="type-PCI", **values):
    return PciDevice(address=f"0000:81:00.{number}", numa_node=numa_node, parent=parent, dev_type=dev_type,
                     **{**NIC, **values})


def asking(count=1, numa_policy="legacy", **spec):
    return PciRequest(alias="nic", count=count, specs=[spec or NIC], numa_policy=numa_policy)


# --- aliases -------------------------------------------------------------------------------------
def test_pci_aliases_are_converted_to_requests():
    aliases = parse_aliases(['{"name": "nic", "vendor_id": "8086", "product_id": "AB12", "device_type": "type-VF"}',
                             '{"name": "gpu", "vendor_id": "10de", "numa_policy": "required"}',
                             '{"name": "nic", "vendor_id": "15b3"}'])
    found = requests("nic:2, gpu:1,nic:1", None, aliases)
    assert found == [
        PciRequest(alias="nic", count=3, specs=[{"vendor_id": "8086", "product_id": "ab12", "dev_type": "type-VF"},
                                                {"vendor_id": "15b3"}]),
        PciRequest(alias="gpu", count=1, specs=[{"vendor_id": "10de"}], numa_policy="required")]
    assert [each.numa_policy for each in requests("nic:1,gpu:1", "socket", aliases)] == ["socket", "socket"]
    assert requests("gpu:0", None, aliases) == []


@pytest.mark.parametrize("option", ["nic", "[]", "{}", '{"name": "nic", "numa_policy": "near"}'])
def test_invalid_pci_aliases_are_reported(option):
    with pytest.raises(exception.InvalidInput, match="alias"):
        parse_aliases([option])


def test_pci_alias_with_conflicting_numa_policies_is_refused():
    with pytest.raises(exception.InvalidInput, match="two different numa_policy values"):
        parse_aliases(['{"name": "nic"}', '{"name": "nic", "numa_policy": "required"}'])


@pytest.mark.parametrize("asked", ["nic", "nic:", "nic:x", "nic:" + "1" * 20, "other:1", ":1"])
def test_invalid_pci_requests_are_refused(asked):
    with pytest.raises(exception.InvalidInput):
        requests(asked, None, parse_aliases(['{"name": "nic"}']))


# --- free devices --------------------------------------------------------------------------------
def test_physical_and_virtual_functions_exclude_each_other():
    pf = device(0, dev_type="type-PF")
    vfs = [device(number, parent=pf.address, dev_type="type-VF") for number in (1, 2)]
    everything = [pf, *vfs]
    assert free(everything, []) == everything
    assert free(everything, [pf.address]) == []
    assert free(everything, [vfs[0].address]) == [vfs[1]]


def test_pci_pools_count_equal_devices():
    found = pools([device(0), device(1), device(2, numa_node=1), device(3, product_id="beef"),
                   device(4, tags={"physical_network": "net"})])
    assert sorted(pool.count for pool in found) == [1, 1, 1, 2]
    assert found == pools(reversed([device(0), device(1), device(2, numa_node=1), device(3, product_id="beef"),
                                    device(4, tags={"physical_network": "net"})]))


# --- allocation ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("policy", "numa_node", "cells", "fits"), [
    ("legacy", 0, [0], True), ("legacy", 1, [0], False), ("legacy", None, [0], True), ("legacy", 1, None, True),
    ("required", 0, [0], True), ("required", 1, [0], False), ("required", None, [0], False),
    ("required", 1, None, True), ("preferred", 1, [0], True), ("preferred", None, [0], True),
    ("socket", 0, [0], True), ("socket", 1, [0], True), ("socket", 2, [0], False), ("socket", None, [0], False)])
def test_pci_numa_policy_restricts_devices_by_cell(policy, numa_node, cells, fits):
    """NUMA cells 0 and 1 share a socket."""
    chosen = choose([device(0, numa_node=numa_node)], [asking(numa_policy=policy)], cells, {0, 1})
    assert (chosen is not None) == fits


def test_nearest_pci_devices_are_allocated_first():
    devices = [device(0, numa_node=1), device(1, numa_node=None), device(2, numa_node=0)]
    chosen = choose(devices, [asking(2, numa_policy="preferred")], [0])
    assert [one.device.address[-1] for one in chosen] == ["1", "2"]
    assert {one.alias for one in chosen} == {"nic"}


def test_most_constrained_pci_request_is_allocated_first():
    devices = [device(0), device(1, product_id="beef")]
    chosen = choose(devices, [asking(vendor_id="8086"), asking(product_id="1572")])
    assert {one.device.product_id for one in chosen} == {"1572", "beef"}


def test_pci_request_matches_alternatives_and_tags():
    devices = [device(0, vendor_id="15B3", tags={"resource_class": "CUSTOM_NIC"})]
    request = PciRequest(alias="nic", count=1, specs=[NIC, {"vendor_id": "15b3", "resource_class": "CUSTOM_NIC"}])
    assert choose(devices, [request]) is not None
    assert choose(devices, [PciRequest(alias="nic", count=1, specs=[{"resource_class": "CUSTOM_GPU"}])]) is None


_DEVICES = st.lists(st.builds(device, st.integers(0, 9), st.sampled_from((None, 0, 1)),
                              product_id=st.sampled_from(("1572", "beef"))), max_size=8,
                    unique_by=lambda one: one.address)
_REQUESTS = st.lists(st.builds(
    PciRequest, alias=st.sampled_from("ab"), count=st.integers(1, 3), numa_policy=st.sampled_from(
        ("legacy", "preferred", "required", "socket")),
    specs=st.sampled_from(([NIC], [{"vendor_id": "8086"}], [{"product_id": "beef"}]))), max_size=3)


@given(devices=_DEVICES, wanted=_REQUESTS, cells=st.sampled_from((None, [0], [0, 1])))
@settings(max_examples=200, deadline=None)
def test_pci_pools_and_device_allocation_agree(devices, wanted, cells):
    have = free(devices, [])
    chosen, left = choose(have, wanted, cells), take(pools(have), wanted, cells)
    assert (chosen is None) == (left is None)
    if chosen is not None:
        given_out = [one.device.address for one in chosen]
        assert len(set(given_out)) == len(given_out) == sum(request.count for request in wanted)
        remaining = pools(free(devices, given_out))
        assert sum(pool.count for pool in left) == sum(pool.count for pool in remaining)


def test_taking_devices_does_not_modify_the_pools():
    have = [PciPool(**NIC, count=2)]
    assert take(have, [asking(2)]) == []
    assert have[0].count == 2
