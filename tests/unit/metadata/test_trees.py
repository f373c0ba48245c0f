"""Metadata documents for guests."""

from __future__ import annotations

import base64
import datetime
import json

import msgspec
import pytest

from nova.metadata import openstack
from nova.metadata.settings import MetadataSettings
from nova.metadata.tree import Tree, is_password
from nova.objects.accounts.flavor import Flavor
from nova.objects.networks.network import VIF, FixedIp
from nova.objects.servers.guest import PASSWORD_KEYS, password_items
from nova.objects.servers.instance import BlockDevice, DeviceAddress, Instance, Key, Personality

SETTINGS = MetadataSettings(dhcp_domain="novalocal", skip_versions=frozenset({"1.0", "2007-01-19"}))


def make(**values):
    vif = VIF(id="v1", network_id="n1", label="private", mac="fa:16:3e:00:00:01", bridge="br1", devname="tapv1",
              fixed_ips=[FixedIp(address="10.0.0.5", prefix=24, gateway="10.0.0.1", dns=["9.9.9.9"], cidr="10.0.0.0/24",
                                 mode="dhcp")])
    defaults = {
        "id": 26, "uuid": "2f7f4b1d-9c3c-4f0e-8c3b-6a2d0a7c9d11", "project_id": "p1", "user_id": "u1",
        "display_name": "Web One", "hostname": "web-one", "reservation_id": "r-abcd1234", "image_ref": "image-1",
        "availability_zone": "nova", "security_groups": ["default", "web"],
        "flavor": Flavor(flavorid="1", name="m1.tiny", memory_mb=512, vcpus=1), "network_info": [vif],
        "key": Key(name="mine", public_key="ssh-rsa AAAA"), "user_data": base64.b64encode(b"#!/bin/sh\n").decode(),
        "metadata": {"role": "web"}, "created_at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    }
    return Instance(**{**defaults, **values})


def get(path, **values):
    result = Tree(make(**values), SETTINGS).lookup(path)
    return None if result is None else result.body.decode()


def document(path, **values):
    return json.loads(get(path, **values))


def test_metadata_root_lists_the_ec2_versions():
    assert get("/").split("\n")[0] == "1.0"
    assert get("/").split("\n")[-2:] == ["2009-04-04", "latest"]
    assert get("/ec2/") == get("/")


@pytest.mark.parametrize(("path", "value"), [
    ("instance-id", "i-0000001a"), ("hostname", "web-one.novalocal"), ("local-ipv4", "10.0.0.5"),
    ("public-ipv4", ""), ("reservation-id", "r-abcd1234"), ("security-groups", "default\nweb"),
    ("instance-type", "m1.tiny"), ("placement/availability-zone", "nova"), ("instance-action", "none"),
    ("ami-manifest-path", "FIXME"), ("ami-launch-index", "0"), ("public-keys/", "0=mine"),
    ("public-keys/0/", "openssh-key"), ("public-keys/0/openssh-key", "ssh-rsa AAAA"),
    ("block-device-mapping/root", "/dev/vda"), ("block-device-mapping/ami", "vda"), ("placement/", "availability-zone"),
])
def test_ec2_metadata_paths_return_instance_values(path, value):
    assert get(f"/latest/meta-data/{path}") == value
    assert get(f"/ec2/2009-04-04/meta-data/{path}") == value


def test_ec2_directories_list_existing_keys():
    assert get("/latest/") == "meta-data/\nuser-data"
    assert get("/latest", user_data=None) == "meta-data/"
    listing = get("/2009-04-04/meta-data/").split("\n")
    assert "public-keys/" in listing
    assert "block-device-mapping/" in listing
    assert listing == sorted(listing)
    assert "kernel-id" not in listing


def test_floating_ip_is_the_public_ipv4():
    vifs = [VIF(id="v", network_id="n", label="l", mac="m", devname="t", floating=address)
            for address in (None, "203.0.113.7")]
    assert get("/latest/meta-data/public-ipv4", network_info=vifs) == "203.0.113.7"


def test_ec2_keys_exist_since_their_version():
    assert get("/1.0/meta-data/public-ipv4") is None
    assert get("/2007-01-19/meta-data/public-ipv4") == ""
    assert get("/2007-03-01/meta-data/instance-type") is None
    assert get("/2007-10-10/meta-data/block-device-mapping/") is None
    assert get("/2007-12-15/meta-data/kernel-id", kernel_id="k").startswith("aki-")
    assert get("/2008-02-01/meta-data/instance-action") is None


@pytest.mark.parametrize("swap", [64, 0])
def test_ec2_block_device_mapping_lists_local_and_volume_devices(swap):
    disks = [BlockDevice(source="image", boot_index=0, device_name="/dev/vda"),
             BlockDevice(source="blank", device_name="/dev/vdb"),
             BlockDevice(source="blank", guest_format="swap", device_name="/dev/vdc"),
             BlockDevice(source="volume", destination="volume", device_name="/dev/vdd")]
    values = {"block_devices": disks, "flavor": msgspec.structs.replace(make().flavor, swap=swap)}
    listing = get("/latest/meta-data/block-device-mapping/", **values)
    assert listing.split("\n") == ["ami", "ebs0", "ephemeral0", "root", *(["swap"] if swap else [])]
    assert get("/latest/meta-data/block-device-mapping/swap", **values) == ("/dev/vdc" if swap else None)


def test_user_data_is_decoded_or_missing():
    assert get("/latest/user-data") == "#!/bin/sh\n"
    assert get("/openstack/latest/user_data") == "#!/bin/sh\n"
    assert get("/latest/user-data", user_data=None) is None
    assert get("/openstack/2012-08-10/user_data", user_data=None) is None


@pytest.mark.parametrize("path", [
    "/nonsense", "/2010-01-01/meta-data/", "/latest/meta-data/nothing", "/latest/meta-data/hostname/more",
    "/latest/meta-data/public-keys/_name", "/latest/meta-data/public-keys/0/_name", "/openstack/2010-01-01",
    "/openstack/latest/nothing", "/openstack/latest/meta_data.json/more", "/openstack/2012-08-10/password",
    "/openstack/2013-04-04/vendor_data.json", "/openstack/2015-10-15/vendor_data2.json", "/openstack/content",
    "/openstack/content/0000", "/openstack/content/../../etc/passwd", "/ec2/ec2/latest",
])
def test_unknown_metadata_paths_are_missing(path):
    assert get(path) is None


def test_openstack_root_lists_released_versions():
    assert get("/openstack").split("\n")[0] == "2012-08-10"
    assert get("/openstack/").split("\n")[-1] == "latest"
    assert openstack.listed(datetime.date(2016, 1, 1)) == [
        "2012-08-10", "2013-04-04", "2013-10-17", "2015-10-15", "latest"]


def test_openstack_documents_exist_since_their_version():
    assert get("/openstack/2012-08-10/").split("\n") == ["meta_data.json", "user_data"]
    assert get("/openstack/2013-10-17").split("\n") == ["meta_data.json", "user_data", "password", "vendor_data.json"]
    assert get("/openstack/latest/", user_data=None).split("\n") == [
        "meta_data.json", "password", "vendor_data.json", "network_data.json", "vendor_data2.json"]


def test_meta_data_document_contains_instance_values():
    result = document("/openstack/latest/meta_data.json", personality=[Personality(path="/etc/x", contents="aGk=")])
    seed = result.pop("random_seed")
    assert len(base64.b64decode(seed)) == 512
    assert result == {
        "uuid": "2f7f4b1d-9c3c-4f0e-8c3b-6a2d0a7c9d11", "name": "Web One", "hostname": "web-one.novalocal",
        "launch_index": 0, "availability_zone": "nova", "meta": {"role": "web"},
        "public_keys": {"mine": "ssh-rsa AAAA"}, "keys": [{"name": "mine", "type": "ssh", "data": "ssh-rsa AAAA"}],
        "files": [{"path": "/etc/x", "content_path": "/content/0000"}], "project_id": "p1", "dedicated_cpus": [],
        "devices": [{"type": "nic", "bus": "none", "address": "none", "mac": "fa:16:3e:00:00:01", "tags": [],
                     "vf_trusted": False}],
    }
    assert document("/openstack/latest/meta_data.json")["random_seed"] != seed


@pytest.mark.parametrize(("version", "absent", "present"), [
    ("2012-08-10", "random_seed", "uuid"), ("2013-04-04", "project_id", "random_seed"),
    ("2015-10-15", "devices", "project_id"), ("2018-08-27", "dedicated_cpus", "devices"),
    ("2020-10-14", "admin_pass", "dedicated_cpus"),
])
def test_meta_data_fields_exist_since_their_version(version, absent, present):
    result = document(f"/openstack/{version}/meta_data.json", admin_pass="secret")
    assert absent not in result
    assert present in result


def test_absent_values_are_omitted_from_meta_data():
    result = document("/openstack/latest/meta_data.json", key=None, metadata={})
    assert not {"meta", "public_keys", "keys", "files"} & set(result)


def test_untagged_interfaces_are_devices_since_rocky():
    assert document("/openstack/2017-02-22/meta_data.json")["devices"] == []
    tagged = make().network_info[0]
    tagged.tag = "uplink"
    assert document("/openstack/2016-06-30/meta_data.json", network_info=[tagged])["devices"] == [
        {"type": "nic", "bus": "none", "address": "none", "mac": "fa:16:3e:00:00:01", "tags": ["uplink"]}]


def test_meta_data_devices_have_reported_addresses():
    tagged = make().network_info[0]
    tagged.tag = "uplink"
    disks = [BlockDevice(source="image", boot_index=0, tag="root"),
             BlockDevice(source="blank", tag="scratch"), BlockDevice(source="blank", guest_format="swap"),
             BlockDevice(source="blank", tag="more", disk_bus="usb"),
             BlockDevice(source="volume", destination="volume", volume_id="v9", device_name="/dev/sda", tag="data")]
    addresses = [DeviceAddress(device="fa:16:3e:00:00:01", bus="pci", address="0000:00:03.0"),
            DeviceAddress(device="root", bus="pci", address="0000:00:04.0"),
            DeviceAddress(device="ephemeral0", bus="ide", address="0:0:0:1"),
            DeviceAddress(device="v9", bus="scsi", address="0:0:0:2")]
    result = document("/openstack/latest/meta_data.json", network_info=[tagged], block_devices=disks,
                     device_addresses=addresses)["devices"]
    assert {(*device["tags"], device["bus"], device["address"]) for device in result} == {
        ("uplink", "pci", "0000:00:03.0"), ("root", "pci", "0000:00:04.0"), ("scratch", "ide", "0:0:0:1"),
        ("more", "usb", "none"), ("data", "scsi", "0:0:0:2")}


def test_network_data_contains_links_networks_and_services():
    assert document("/openstack/latest/network_data.json") == {
        "links": [{"id": "tapv1", "vif_id": "v1", "type": "bridge", "mtu": None,
                   "ethernet_mac_address": "fa:16:3e:00:00:01"}],
        "networks": [{"id": "network0", "type": "ipv4_dhcp", "link": "tapv1", "network_id": "n1"}],
        "services": [{"type": "dns", "address": "9.9.9.9"}],
    }
    assert document("/openstack/latest/network_data.json", network_info=[]) == {}


def test_network_data_of_static_ipv4_has_address_and_routes():
    vif = make().network_info[0]
    vif.fixed_ips[0].mode = None
    network = openstack.network_data([vif])["networks"][0]
    assert network == {
        "id": "network0", "type": "ipv4", "link": "tapv1", "network_id": "n1", "ip_address": "10.0.0.5",
        "netmask": "255.255.255.0", "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}],
        "services": [{"type": "dns", "address": "9.9.9.9"}]}


def test_network_data_lists_ipv4_and_ipv6_networks():
    vif = make().network_info[0]
    vif.fixed_ips.append(FixedIp(address="fd00::5", version=6, prefix=64, cidr="fd00::/64", gateway="fd00::1",
                                 dns=["fd00::53"], mode="slaac"))
    result = openstack.network_data([vif])
    assert [network["type"] for network in result["networks"]] == ["ipv4_dhcp", "ipv6_slaac"]
    assert [service["address"] for service in result["services"]] == ["9.9.9.9", "fd00::53"]
    vif.fixed_ips[1].mode = "dhcpv6-stateful"
    assert openstack.network_data([vif])["networks"][1] == {
        "id": "network1", "type": "ipv6_dhcpv6-stateful", "link": "tapv1", "network_id": "n1"}
    vif.fixed_ips = [msgspec.structs.replace(vif.fixed_ips[1], mode=None)]
    assert openstack.network_data([vif])["networks"] == [{
        "id": "network0", "type": "ipv6", "link": "tapv1", "network_id": "n1", "ip_address": "fd00::5",
        "netmask": "ffff:ffff:ffff:ffff::", "routes": [{"network": "::", "netmask": "::", "gateway": "fd00::1"}],
        "services": [{"type": "dns", "address": "fd00::53"}]}]


def test_local_ipv4_ignores_ipv6_addresses():
    vif = make().network_info[0]
    vif.fixed_ips.insert(0, FixedIp(address="fd00::5", version=6, prefix=64))
    assert get("/latest/meta-data/local-ipv4", network_info=[vif]) == "10.0.0.5"


def test_vendor_data_documents_contain_the_configured_data():
    tree = Tree(make(), MetadataSettings(vendordata={"a": 1}))
    assert json.loads(tree.lookup("/openstack/latest/vendor_data.json").body) == {"a": 1}
    assert json.loads(tree.lookup("/openstack/latest/vendor_data2.json").body) == {"static": {"a": 1}}
    assert document("/openstack/latest/vendor_data.json") == {}
    assert document("/openstack/latest/vendor_data2.json") == {}


def test_injected_files_are_served_as_content():
    assert get("/openstack/content/0000", personality=[Personality(path="/x", contents="aGk=")]) == "hi"


def test_passwords_are_stored_in_chunks():
    items = password_items("x" * 600)
    assert [len(items[key]) for key in PASSWORD_KEYS] == [255, 255, 90, 0]
    assert get("/openstack/latest/password", system_metadata=items) == "x" * 600
    assert get("/openstack/latest/password") == ""


def test_password_is_accepted_only_by_versions_with_a_password_document():
    assert is_password("/openstack/latest/password")
    assert is_password("/openstack/2013-04-04/password/")
    assert not is_password("/openstack/2012-08-10/password")
    assert not is_password("/openstack/latest/meta_data.json")
    assert not is_password("/password")


def test_metadata_json_and_text_have_their_content_types():
    tree = Tree(make(), SETTINGS)
    assert tree.lookup("/openstack/latest/meta_data.json").content_type == "application/json"
    assert tree.lookup("/openstack/latest/network_data.json").content_type.startswith("text/plain")
    assert tree.lookup("/latest/meta-data/hostname").content_type.startswith("text/plain")
