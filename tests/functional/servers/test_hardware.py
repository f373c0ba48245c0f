"""Virtual hardware over HTTP: unsupported hardware is refused, and reported hardware limits the possible hosts."""

import pytest

from nova.db.servers import servers
from nova.objects.servers.instance import OWNER_PROJECT_NAME, OWNER_USER_NAME
from tests.functional.client import Client, wait_for
from tests.functional.several_hosts import refused


def flavor_with(client, specs):
    flavor = client.flavor()
    # Before 2.86 the API stores extra specs without validation.
    client.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": specs}, version="2.85")
    return flavor


def refusal_of(client, flavor, image, **values):
    return refused(lambda: client.boot(flavor, image, **values))


@pytest.mark.parametrize("properties", [
    {"hw_disk_bus": "fdc"}, {"hw_cdrom_bus": "fdc"}, {"hw_scsi_model": "pigeon"}, {"hw_vif_model": "pigeon"},
    {"hw_machine_type": "microvm"}, {"hw_architecture": "pdp11"}, {"hw_input_bus": "ps2"}, {"hw_pmu": "perhaps"},
    {"os_secure_boot": "required"}, {"hw_locked_memory": "true"}, {"hw_video_ram": "64"}, {"hw_tpm_model": "tpm-crb"},
    {"hw_vm_mode": "vax"}, {"img_hv_type": "vax"}, {"hw_serial_port_count": "9"}, {"hw_cpu_max_sockets": "0"}])
def test_image_with_unsupported_hardware_properties_is_refused(admin, flavor, new_image, properties):
    code, message = refusal_of(admin, flavor, new_image(**properties))
    assert (code, next(iter(properties)).replace("hw_serial", "serial") in message) == (400, True), message


_UNSUPPORTED_SPECS = [
    ({"hw:locked_memory": "true"}, "hw:locked_memory"), ({"hw:cpu_realtime": "true"}, "hw:cpu_realtime"),
    ({"hw:cpu_realtime": "true", "hw:cpu_policy": "dedicated"}, "hw:cpu_realtime_mask"),
    ({"hw:tpm_version": "1.2", "hw:tpm_model": "tpm-crb"}, "hw_tpm_model"),
    ({"os:secure_boot": "required"}, "os_secure_boot"), ({"quota:vif_inbound_peak": "1"}, "quota:vif_inbound_average"),
    ({"quota:cpu_period": "999"}, "quota:cpu_period"),
    ({"quota:disk_total_bytes_sec": "1", "quota:disk_read_bytes_sec": "1"}, "quota:disk_total_bytes_sec"),
    ({"hw:sound_model": "pigeon"}, "hw:sound_model=pigeon")]


@pytest.mark.parametrize(("specs", "named"), _UNSUPPORTED_SPECS)
def test_flavor_with_unsupported_extra_specs_is_refused(admin, image_id, specs, named):
    code, message = refusal_of(admin, flavor_with(admin, specs), image_id)
    assert (code, named in message) == (400, True), message


def test_resize_to_flavors_with_unsupported_extra_specs_is_refused(admin, image_id):
    server = admin.boot(admin.flavor(), image_id)
    admin.wait(server, "ACTIVE")
    for specs, named in _UNSUPPORTED_SPECS:
        flavor = flavor_with(admin, specs)
        code, message = refused(lambda flavor=flavor: admin.action(server, "resize", {"flavorRef": flavor}))
        assert (code, named in message) == (400, True), message
    print(f"refused: {_UNSUPPORTED_SPECS}")
    assert admin.server(server)["status"] == "ACTIVE"


@pytest.mark.parametrize(("specs", "properties"), [
    ({}, {"hw_sound_model": "pcspk"}), ({}, {"hw_scsi_model": "ibmvscsi"}), ({}, {"hw_viommu_model": "intel"}),
    ({}, {"hw_emulation_architecture": "aarch64"}), ({"quota:vif_inbound_average": "100"}, {}),
    ({"hw:redirected_usb_ports": "1"}, {})])
def test_boot_with_hardware_that_no_host_reports_fails_without_valid_host(admin, driver, new_image, specs, properties):
    flavor = flavor_with(admin, specs) if specs else admin.flavor()
    server = admin.boot(flavor, new_image(**properties))
    assert "No valid host" in admin.wait(server, "ERROR")["fault"]["message"]
    assert admin.server(server)["OS-EXT-SRV-ATTR:host"] is None
    admin.delete(f"/servers/{server}")


def test_boot_with_hardware_reported_by_a_host_succeeds(admin, driver, new_image):
    image = new_image(hw_disk_bus="scsi", hw_scsi_model="virtio-scsi", hw_vif_model="e1000", hw_video_model="qxl",
                      architecture="i386", hw_machine_type="q35", hw_firmware_type="uefi")
    server = admin.boot(admin.flavor(), image)
    admin.wait(server, "ACTIVE")


@pytest.mark.parametrize(("device", "named"), [
    ({"device_type": "tape"}, "device_type=tape"), ({"disk_bus": "pigeon"}, "disk_bus"),
    ({"device_type": "cdrom"}, "device_type=cdrom"), ({"device_type": "cdrom", "disk_bus": "virtio"}, "disk_bus"),
    ({"device_type": "floppy"}, "device_type=floppy"), ({"disk_bus": "fdc"}, "disk_bus"),
    ({"guest_format": "zfs"}, "guest_format=zfs")])
def test_unsupported_block_device_types_are_refused(admin, flavor, image_id, device, named):
    blank = {"source_type": "blank", "destination_type": "local", "boot_index": -1, "volume_size": 1, **device}
    root = {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image_id}
    code, message = refusal_of(admin, flavor, image_id, block_device_mapping_v2=[root, blank])
    assert (code, named in message) == (400, True), message


@pytest.mark.parametrize(("properties", "disks", "named"), [
    ({"hw_usb_model": "none"}, [{"disk_bus": "usb"}], "bus usb and hw_usb_model=none"),
    ({"hw_usb_model": "none", "hw_disk_bus": "usb"}, [], "bus usb and hw_usb_model=none"),
    ({"hw_machine_type": "q35"}, [{"disk_bus": "ide"}], "bus ide and hw_machine_type=q35"),
    ({"hw_machine_type": "pc", "hw_disk_bus": "ide"}, [{}] * 4, "5 disks on the bus ide"),
    ({"hw_machine_type": "pc"}, [{"disk_bus": "ide"}] * 5, "5 disks on the bus ide")])
def test_disks_that_exceed_or_conflict_with_their_bus_are_refused(admin, new_image, properties, disks, named):
    flavor, image = admin.flavor(), new_image(**properties)
    root = {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image}
    blank = {"source_type": "blank", "destination_type": "volume", "volume_size": 1}
    code, message = refusal_of(admin, flavor, image,
                               block_device_mapping_v2=[root, *({**blank, **disk} for disk in disks)])
    assert (code, named in message) == (400, True), message


def test_swap_and_config_drive_count_towards_disks_of_the_image_bus(admin, new_image):
    flavor = admin.flavor(swap=64, **{"OS-FLV-EXT-DATA:ephemeral": 1})
    image = new_image(hw_machine_type="pc", hw_disk_bus="ide")
    devices = [{"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image},
               {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True}]
    code, message = refusal_of(admin, flavor, image, config_drive=True, block_device_mapping_v2=devices)
    assert (code, "5 disks on the bus ide" in message) == (400, True), message
    server = admin.boot(flavor, image, block_device_mapping_v2=devices)
    admin.delete(f"/servers/{server}")
    wait_for(lambda: not admin.get("/os-volumes", version="2.1")["volumes"], 40, "the server's volume is deleted")


def test_resize_that_adds_a_disk_to_a_full_bus_is_refused(admin, new_image):
    image, flavor = new_image(hw_machine_type="pc", hw_disk_bus="ide"), admin.flavor(**{"OS-FLV-EXT-DATA:ephemeral": 1})
    server = admin.boot(flavor, image, config_drive=True, block_device_mapping_v2=[
        {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image},
        {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True}])
    admin.wait(server, "ACTIVE")
    larger = admin.flavor(swap=64, **{"OS-FLV-EXT-DATA:ephemeral": 1})
    code, message = refused(lambda: admin.action(server, "resize", {"flavorRef": larger}))
    assert (code, "5 disks on the bus ide" in message) == (400, True), message
    admin.delete(f"/servers/{server}")
    wait_for(lambda: not admin.get("/os-volumes", version="2.1")["volumes"], 40, "the server's volume is deleted")


def test_file_backed_volume_with_device_type_lun_is_refused(admin, flavor, image_id):
    volume = {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "device_type": "lun"}
    code, message = refusal_of(admin, flavor, image_id, block_device_mapping_v2=[
        {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image_id}, volume])
    assert (code, "device_type=lun" in message) == (400, True), message


def test_boot_with_unreported_disk_bus_fails_without_valid_host(admin, flavor, image_id):
    root = {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image_id, "disk_bus": "xen"}
    server = admin.boot(flavor, image_id, block_device_mapping_v2=[root])
    assert "No valid host" in admin.wait(server, "ERROR")["fault"]["message"]


def test_rebuild_and_rescue_with_unsupported_hardware_are_refused(admin, flavor, image_id, driver, new_image):
    server = admin.boot(flavor, image_id)
    admin.wait(server, "ACTIVE")
    wrong, lacking = new_image(hw_video_model="pigeon"), new_image(hw_sound_model="pcspk")
    floppy = new_image(hw_rescue_device="floppy", hw_rescue_bus="fdc")
    for image, named in ((wrong, "hw_video_model"), (lacking, "COMPUTE_SOUND_MODEL_PCSPK"),
                         (floppy, "hw_rescue_device=floppy")):
        code, message = refused(lambda image=image: admin.action(server, "rescue", {"rescue_image_ref": image}))
        assert (code, named in message) == (400, True), message
    code, message = refused(lambda: admin.action(server, "rebuild", {"imageRef": wrong}))
    assert (code, "hw_video_model" in message) == (400, True), message
    assert admin.server(server)["status"] == "ACTIVE"


def test_server_stores_user_and_project_names_of_its_owner(suite, flavor, image_id):
    client = Client(suite.url)
    client.session.headers.update({"X-User-Name": "ada", "X-Project-Name": "engines"})
    server = client.boot(flavor, image_id)
    client.wait(server, "ACTIVE")
    client.action(server, "rebuild", {"imageRef": image_id})
    client.wait(server, "ACTIVE")
    kept = suite.conductor.core.db.read(lambda connection: servers.get(connection, server)).system_metadata
    assert (kept[OWNER_USER_NAME], kept[OWNER_PROJECT_NAME]) == ("ada", "engines")
