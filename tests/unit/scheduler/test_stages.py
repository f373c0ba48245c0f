"""Checks independent of the filters: traits, amounts, and aggregates if configured."""

from __future__ import annotations

import pytest

from nova import exception
from nova.objects.hosts.node import Inventory
from nova.objects.images.image import Image
from tests.unit.scheduler.builders import choose, fleet, node, request, spec


def fits(*states, **values) -> list[str]:
    try:
        return sorted(choose(fleet(*states), spec(alternates=len(states), **values))[0])
    except exception.NoValidHost:
        return []


def test_hosts_must_have_required_and_no_forbidden_traits():
    states = node("a", traits=["X", "Y"]), node("b", traits=["X"]), node("c")
    assert fits(*states, required_traits=["X"]) == ["a", "b"]
    assert fits(*states, required_traits=["X"], forbidden_traits=["Y"]) == ["b"]
    assert fits(*states, forbidden_traits=["X"]) == ["c"]
    assert fits(*states, required_traits=["Z"]) == []


@pytest.mark.parametrize(("inventory", "expected"), [
    (Inventory(total=10), True),
    (Inventory(total=10, used=6), True),
    (Inventory(total=10, used=7), False),
    (Inventory(total=10, reserved=6), True),
    (Inventory(total=10, reserved=7), False),
    (Inventory(total=2, ratio=2.0), True),
    (Inventory(total=2, ratio=1.9), False),
    (Inventory(total=10, max_unit=3), False),
    (Inventory(total=10, min_unit=5), False),
    (Inventory(total=10, step_size=2), True),
    (Inventory(total=10, step_size=3), False),
    (Inventory(total=0), False),
])
def test_inventory_capacity_includes_reserved_ratio_and_units(inventory, expected):
    states = node("a", inventories={"CUSTOM_THING": inventory}), node("b", inventories={"OTHER": Inventory(total=9)})
    assert fits(*states, resources={"CUSTOM_THING": 4}) == (["a"] if expected else [])


def test_resource_class_without_inventory_is_refused():
    assert fits(node("a"), resources={"CUSTOM_NOTHING": 1}) == []


def test_request_without_resources_fits_everywhere():
    assert fits(node("a", ram=0), resources={}) == ["a"]


def test_tenant_aggregate_prefilter_limits_projects_to_their_aggregates(settings):
    states = (node("plain"), node("ours", aggregates=[{"filter_tenant_id": "project"}]),
              node("theirs", aggregates=[{"filter_tenant_id_2": "other"}]))
    assert fits(*states) == ["ours", "plain", "theirs"]
    settings("scheduler", limit_tenants_to_placement_aggregate=True)
    assert fits(*states) == ["ours"]
    assert fits(states[0], states[2]) == ["plain", "theirs"]
    settings("scheduler", placement_aggregate_required_for_tenants=True)
    assert fits(states[0], states[2]) == []


def test_isolated_aggregates_require_their_traits_in_the_request(settings):
    states = (node("plain", traits=["X", "Y"]), node("x", traits=["X"], aggregates=[{"trait:X": "required"}]))
    assert fits(*states) == ["plain", "x"]
    settings("scheduler", enable_isolated_aggregate_filtering=True)
    assert fits(*states) == ["plain"]
    assert fits(*states, required_traits=["X"]) == ["plain", "x"]


def test_image_prefilters_add_required_traits(settings):
    image = Image(id="i", disk_format="qcow2", properties={
        "hw_disk_bus": "virtio", "architecture": "amd64", "hw_vif_model": "spapr-vlan"})
    asked = spec()
    asked.image = image
    assert request(asked).required_traits == frozenset()
    settings("scheduler", query_placement_for_image_type_support=True)
    assert request(asked).required_traits == {"COMPUTE_IMAGE_TYPE_QCOW2"}
    settings("scheduler", query_placement_for_image_type_support=False, image_metadata_prefilter=True)
    assert request(asked).required_traits == {
        "COMPUTE_STORAGE_BUS_VIRTIO", "HW_ARCH_X86_64", "COMPUTE_NET_VIF_MODEL_SPAPR_VLAN"}
