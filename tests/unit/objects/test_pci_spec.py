"""[pci]device_spec: selection of devices for guests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nova import exception
from nova.objects.dedicated_resources import pci_spec
from nova.objects.dedicated_resources.pci import PF, VF, PciDevice

DEVICES = [
    PciDevice(address="0000:81:00.0", vendor_id="8086", product_id="1572", dev_type=PF),
    PciDevice(address="0000:81:02.1", vendor_id="8086", product_id="154c", dev_type=VF, parent="0000:81:00.0"),
    PciDevice(address="0000:82:00.0", vendor_id="10de", product_id="20b0"),
    PciDevice(address="0001:82:00.0", vendor_id="10de", product_id="20b0")]


def chosen(*specs: Any, **names: Any) -> list[str]:
    found = pci_spec.given_out(DEVICES, pci_spec.parse([json.dumps(spec) for spec in specs]), names.get("names"))
    return [device.address for device in found]


@pytest.mark.parametrize(("spec", "addresses"), [
    ({}, [device.address for device in DEVICES]),
    ({"vendor_id": "10DE"}, ["0000:82:00.0", "0001:82:00.0"]),
    ({"vendor_id": "*", "product_id": "154c"}, ["0000:81:02.1"]),
    ({"address": "0000:82:00.0"}, ["0000:82:00.0"]),
    ({"address": "*:82:00.*"}, ["0000:82:00.0", "0001:82:00.0"]),
    ({"address": ":81:"}, ["0000:81:00.0", "0000:81:02.1"]),
    # The address of a physical function also selects its virtual functions.
    ({"address": "0000:81:00.0"}, ["0000:81:00.0", "0000:81:02.1"]),
    ({"address": {"domain": ".*", "bus": "82", "slot": "00", "function": "[0-3]"}}, ["0000:82:00.0", "0001:82:00.0"]),
    ({"address": {"domain": "0001"}}, ["0001:82:00.0"]),
])
def test_device_spec_selects_by_vendor_product_or_address(spec: dict[str, Any], addresses: list[str]) -> None:
    assert chosen(spec) == addresses
    assert chosen([spec, spec]) == addresses


def test_device_spec_selects_by_interface_name() -> None:
    assert chosen({"devname": "eth3"}, names={"0000:81:00.0": ["eth3"]}) == ["0000:81:00.0"]


def test_first_matching_device_spec_determines_the_tags() -> None:
    specs = pci_spec.parse(['{"address": "0000:82:00.0", "physical_network": "one", "trusted": true}',
                            '{"vendor_id": "10de", "resource_class": "CUSTOM_GPU"}'])
    assert [device.tags for device in pci_spec.given_out(DEVICES, specs)] == [
        {"physical_network": "one", "trusted": "true"}, {"resource_class": "CUSTOM_GPU"}]


@pytest.mark.parametrize(("option", "says"), [
    ("{", "not valid JSON"), ('"x"', "not a JSON object"), ('{"vendor": "10de"}', "vendor is not a known key"),
    ('{"vendor_id": "10"}', "vendor_id"), ('{"address": "zz:00.0"}', "not a PCI address"),
    ('{"address": "1:2:3:4.0"}', "not a PCI address"), ('{"address": {"bus": "("}}', "regular expression"),
    ('{"address": {"node": "1"}}', "node is not a field"), ('{"address": "*", "devname": "eth0"}', "exclusive")])
def test_invalid_device_spec_is_reported_with_its_error(option: str, says: str) -> None:
    with pytest.raises(exception.InvalidInput) as refused:
        pci_spec.parse([option])
    assert "[pci]device_spec" in str(refused.value)
    assert says in str(refused.value)
