"""Device metadata of guests: buses and addresses as reported by hosts."""

import json

import pytest

from nova import bus, context
from nova.api.compute.servers import servers_schemas
from nova.metadata.settings import MetadataSettings
from nova.metadata.tree import Tree
from nova.rpcapi.by_hosts import Guests
from tests.functional.servers.test_interfaces import attach, blue, green, wait_active  # noqa: F401 (fixtures)
from tests.functional.volumes.test_volumes import attach as attach_volume
from tests.functional.volumes.test_volumes import books, make, no_volumes_left, wait_status  # noqa: F401 (fixtures)


@pytest.fixture
def server(admin, flavor, image_id, blue):  # noqa: F811
    uuid = admin.boot(flavor, image_id, networks=[{"uuid": blue, "tag": "uplink"}], block_device_mapping_v2=[
        {"source_type": "image", "destination_type": "local", "uuid": image_id, "boot_index": 0, "tag": "root",
         "delete_on_termination": True}])
    admin.wait(uuid, "ACTIVE")
    return uuid


def devices(suite, admin, server, version="latest"):
    """Return type, bus and address by tag from the metadata service, requested with the server's first address."""
    first = admin.get(f"/servers/{server}/os-interface")["interfaceAttachments"][-1]
    guests = bus.client(suite.transport, Guests)
    instance = guests.by_address(context.admin(), first["net_id"], first["fixed_ips"][0]["ip_address"])
    document = json.loads(Tree(instance, MetadataSettings()).lookup(f"/openstack/{version}/meta_data.json").body)
    return {"".join(device["tags"]): (device["type"], device["bus"], device["address"])
            for device in document["devices"]}


def test_device_metadata_shows_bus_and_address_of_tagged_devices(suite, admin, server):
    assert devices(suite, admin, server) == {
        "root": ("disk", "pci", "0000:00:02.0"), "uplink": ("nic", "pci", "0000:00:03.0")}


def test_device_metadata_includes_attached_interfaces_and_volumes(suite, admin, member, server, green):  # noqa: F811
    wait_active(admin, server, attach(admin, server, net_id=green)["port_id"])
    volume = make(member)
    attach_volume(admin, server, volume, tag="data")
    wait_status(member, volume, "in-use")
    assert devices(suite, admin, server) == {
        "root": ("disk", "pci", "0000:00:02.0"), "uplink": ("nic", "pci", "0000:00:03.0"),
        "": ("nic", "pci", "0000:00:04.0"), "data": ("disk", "pci", "0000:00:05.0")}
    assert "" not in devices(suite, admin, server, "2017-02-22"), "versions before Rocky omit devices without tags"


def test_hard_reboot_refreshes_device_metadata(suite, admin, driver, server, monkeypatch):
    found = driver.guests.device_addresses(server)
    for each in found:
        each.address = "0000:01:00.0"
    monkeypatch.setattr(driver.guests, "device_addresses", lambda uuid: found)
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait(server, "ACTIVE")
    assert devices(suite, admin, server)["uplink"] == ("nic", "pci", "0000:01:00.0")


def test_several_networks_of_a_request_have_their_own_address_and_tag(
        suite, admin, driver, flavor, image_id, blue, green):  # noqa: F811
    """Every field of ``networks`` but port, for three interfaces, two of them on the same network."""
    wanted = [(green, "10.32.0.77", "first"), (blue, "10.31.0.4", "second"), (green, "10.32.0.78", "third")]
    uuid = admin.boot(flavor, image_id, networks=[
        {"uuid": network, "fixed_ip": address, "tag": tag} for network, address, tag in wanted])
    admin.wait(uuid, "ACTIVE")
    shown = {card["mac_addr"]: (card["net_id"], card["tag"], {ip["ip_address"] for ip in card["fixed_ips"]})
             for card in admin.get(f"/servers/{uuid}/os-interface", version="2.70")["interfaceAttachments"]}
    cards = [shown[mac] for mac in driver.guest(uuid).interfaces]
    assert [card[:2] for card in cards] == [(network, tag) for network, _address, tag in wanted]
    assert all(address in card[2] for card, (_network, address, _tag) in zip(cards, wanted, strict=True))
    assert {tag for _network, _address, tag in wanted} == devices(suite, admin, uuid).keys()
    fields = servers_schemas._NETWORK.schema(104)["properties"].keys()
    print(f"fields of networks: {', '.join(sorted(fields))}; those of port: test_neutron.py")
    assert fields == {"uuid", "fixed_ip", "tag", "port"}
