"""Images and local disks in server requests: access rights and limits."""

import json
import uuid

import pytest

from nova import bus, context
from nova.api.compute.images import image_metadata
from nova.conf import CONF
from nova.image.directory import DirectoryStore
from nova.objects.images.image import Image
from nova.rpcapi.volumes import Volumes
from tests.functional.client import Client, Failed, wait_for
from tests.functional.conftest import remove_servers
from tests.unit.image import signing

MIB = 1 << 20
OURS, THEIRS = "project-a", "project-b"


def named(name):
    """Return the id of the test image with this name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


@pytest.fixture
def tenant(suite):
    """Return a client of a member of a project that owns images."""
    return Client(suite.url, project=OURS, user="a", roles="member,reader")


@pytest.fixture
def give(suite, tmp_path):
    """Return a function that adds a private image of a project and returns its id."""
    given = []

    def give(name, owner=OURS, disk_format="raw", size=1024, **properties):
        path = tmp_path / name
        path.write_bytes(bytes(size))
        image = Image(id=named(name), name=name, disk_format=disk_format, visibility="private", owner=owner,
                      properties=properties)
        given.append(DirectoryStore().add(str(path), image).id)
        return given[-1]

    yield give
    for ident in set(given):
        DirectoryStore().delete(context.admin(), ident)


@pytest.fixture(autouse=True)
def nothing_left(suite):
    yield
    remove_servers(Client(suite.url))
    books = bus.client(suite.transport, Volumes)
    for volume in books.index(context.admin()):
        books.delete(context.admin(), volume.uuid)
    wait_for(lambda: not books.index(context.admin()), reason="all volumes are deleted")


def refusal(client, flavor, image, **values):
    with pytest.raises(Failed) as failed:
        client.boot(flavor, image, **values)
    assert failed.value.code == 400, failed.value.message
    return failed.value.message


def from_volume(image, **values):
    device = {"source_type": "image", "destination_type": "volume", "uuid": image, "volume_size": 1, "boot_index": 0}
    return {"block_device_mapping_v2": [{**device, **values}]}


# --- properties ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("properties", [
    {f"p{number}": "x" * 65_000 for number in range(3)}, {"x" * 70_000: ""},
    {"block_device_mapping": json.dumps([{"source_type": "blank", "tag": "x" * 60}] * 2000)}])
def test_images_with_oversized_properties_are_refused(tenant, flavor, give, properties):
    """The image service accepts megabytes of properties, and a server stores them three times."""
    image = give("verbose", **properties)
    messages = [refusal(tenant, flavor, image), refusal(tenant, flavor, "", **from_volume(image))]
    assert all("its properties have more than" in message for message in messages)


# --- kernels and ramdisks --------------------------------------------------------------------------------
def test_boot_with_kernel_and_ramdisk_images_of_the_own_project(admin, tenant, flavor, give):
    kernel, ramdisk = give("kernel", disk_format="aki"), give("ramdisk", disk_format="ari")
    image = give("trio", disk_format="ami", kernel_id=kernel, ramdisk_id=ramdisk)
    for top in ({"image": image}, {"image": "", **from_volume(image)}):
        shown = admin.server(tenant.boot(flavor, **top))
        assert (shown["OS-EXT-SRV-ATTR:kernel_id"], shown["OS-EXT-SRV-ATTR:ramdisk_id"]) == (kernel, ramdisk)
    whole = admin.server(tenant.boot(flavor, give("whole", kernel_id="nokernel", ramdisk_id="")))
    assert (whole["OS-EXT-SRV-ATTR:kernel_id"], whole["OS-EXT-SRV-ATTR:ramdisk_id"]) == ("", "")


@pytest.mark.parametrize("name", ["kernel_id", "ramdisk_id"])
def test_kernel_image_of_another_project_is_reported_as_missing(tenant, flavor, give, name):
    give("secret", owner=THEIRS, disk_format="aki" if name == "kernel_id" else "ari")
    told = set()
    for ident in (named("secret"), named("nothing"), "../secret"):
        image = give("trap", **{name: ident})
        for message in (refusal(tenant, flavor, image), refusal(tenant, flavor, "", **from_volume(image))):
            assert message == f"Can not find image {ident}, the {name} of image {image}."
            told.add(message.replace(ident, ""))
    assert len(told) == 1


def test_kernel_or_ramdisk_with_wrong_format_or_size_is_refused(tenant, flavor, give):
    CONF.set_override("kernel_size_limit_mb", 1, "compute")
    try:
        disk, large = give("disk", disk_format="qcow2"), give("large", disk_format="aki", size=MIB + 1)
        for properties, words in (({"kernel_id": disk}, "kernel_id of image {} must be in the format aki or raw"),
                                  ({"ramdisk_id": large}, "ramdisk_id of image {} must be in the format ari or raw"),
                                  ({"kernel_id": large}, "kernel_id of image {} must be at most 1 MiB large")):
            image = give("one", **properties)
            assert words.format(image) in refusal(tenant, flavor, image)
    finally:
        CONF.clear_override("kernel_size_limit_mb", "compute")


def test_boot_from_volume_checks_access_to_its_kernel_image(admin, tenant, flavor, give):
    image = give("trio", disk_format="ami", kernel_id=give("kernel", disk_format="aki"))
    first = tenant.boot(flavor, "", **from_volume(image, delete_on_termination=False))
    volume = admin.wait(first, "ACTIVE")["os-extended-volumes:volumes_attached"][0]["id"]
    tenant.delete(f"/servers/{first}")
    tenant.wait_gone(first)
    again = {"block_device_mapping_v2": [{"source_type": "volume", "uuid": volume, "boot_index": 0}]}
    give("kernel", owner=THEIRS, disk_format="aki")
    assert refusal(tenant, flavor, "", **again) == (
        f"Can not find image {named('kernel')}, the kernel_id of image {image}.")
    give("kernel", disk_format="aki")
    second = tenant.boot(flavor, "", **again)
    assert admin.wait(second, "ACTIVE")["OS-EXT-SRV-ATTR:kernel_id"] == named("kernel")


def test_images_of_other_projects_are_refused_in_bdm_rebuild_and_rescue(admin, tenant, flavor, give):
    """Check data volumes, rebuild and rescue, and the kernels of the requested images."""
    own, secret = give("own"), give("secret", owner=THEIRS)
    trap = give("trap", kernel_id=give("hidden", owner=THEIRS, disk_format="aki"))
    root = {"source_type": "image", "destination_type": "local", "uuid": own, "boot_index": 0}
    data = {"source_type": "image", "destination_type": "volume", "uuid": secret, "volume_size": 1, "boot_index": -1}
    assert "Can not find" in refusal(tenant, flavor, own, block_device_mapping_v2=[root, data])
    server = tenant.boot(flavor, own, block_device_mapping_v2=[root, {**data, "uuid": own}])
    admin.wait(server, "ACTIVE")
    for action, name in (("rebuild", "imageRef"), ("rescue", "rescue_image_ref")):
        for image in (secret, trap):
            with pytest.raises(Failed, match="Can not find") as failed:
                tenant.action(server, action, {name: image})
            assert failed.value.code == 400


# --- local disks -----------------------------------------------------------------------------------------
@pytest.fixture
def roomy(suite):
    """Return a flavor with an ephemeral disk and swap."""
    return Client(suite.url).flavor(**{"disk": 1, "OS-FLV-EXT-DATA:ephemeral": 20, "swap": 512})


def blank(count, **values):
    return {"block_device_mapping_v2": [
        {"source_type": "blank", "destination_type": "local", "boot_index": -1, **values} for _ in range(count)]}


def test_ephemeral_disks_without_a_size_count_with_their_default_size(tenant, roomy, flavor, image_id):
    assert "1200 GB requested, 20 GB allowed" in refusal(tenant, roomy, image_id, **blank(60))
    assert "40 GB requested, 20 GB allowed" in refusal(tenant, roomy, image_id, **blank(2))
    assert "40 GB requested" in refusal(tenant, roomy, image_id, block_device_mapping=[
        {"virtual_name": "ephemeral0", "device_name": "vdb"}, {"virtual_name": "ephemeral1", "device_name": "vdc"}])
    assert "21 GB requested" in refusal(tenant, roomy, image_id, **blank(1, volume_size=21))
    assert "without a volume_size" in refusal(tenant, flavor, image_id, **blank(1))


def test_local_disks_are_limited_by_max_local_block_devices(admin, tenant, roomy, image_id):
    assert "4 local disks requested, 3 allowed" in refusal(tenant, roomy, image_id, **blank(2, volume_size=1))
    admin.wait(tenant.boot(roomy, image_id), "ACTIVE")
    admin.wait(tenant.boot(roomy, image_id, **blank(1, volume_size=20)), "ACTIVE")
    CONF.set_override("max_local_block_devices", -1)
    try:
        admin.wait(tenant.boot(roomy, image_id, **blank(10, volume_size=2)), "ACTIVE")
        CONF.set_override("max_local_block_devices", 0)
        assert "3 local disks requested, 0 allowed" in refusal(tenant, roomy, image_id)
    finally:
        CONF.clear_override("max_local_block_devices")


def test_resize_below_the_size_of_ephemeral_disks_is_refused(admin, tenant, roomy, image_id):
    server = tenant.boot(roomy, image_id, **blank(1, volume_size=20))
    admin.wait(server, "ACTIVE")
    smaller = admin.flavor(**{"disk": 40, "OS-FLV-EXT-DATA:ephemeral": 5, "swap": 512})
    with pytest.raises(Failed, match="20 GB requested, 5 GB allowed") as failed:
        tenant.action(server, "resize", {"flavorRef": smaller})
    assert failed.value.code == 400
    assert admin.wait(server, "ACTIVE")["flavor"]["ephemeral"] == 20


# --- signatures ------------------------------------------------------------------------------------------
def test_trusted_certificates_without_signature_verification_are_refused(tenant, flavor, image_id):
    assert "trusted_image_certificates: signatures of images are not verified" in refusal(
        tenant, flavor, image_id, trusted_image_certificates=["root"])


def test_signature_verification_accepts_only_images_of_trusted_signers(admin, tenant, flavor, give, image_id, tmp_path):
    key_manager = pytest.importorskip("castellan.key_manager")
    pytest.importorskip("cursive")
    root, signer = signing.rsa_key(), signing.rsa_key()
    signing.put(tmp_path / "pem", "root", signing.certificate(root, "root", authority=True))
    signing.put(tmp_path / "pem", "other", signing.certificate(signer, "other", authority=True))
    signing.put(tmp_path / "pem", "signer", signing.certificate(signer, "signer", root, "root"))
    CONF.register_opts(key_manager.key_manager_opts, group="key_manager")
    wanted = {("verify_glance_signatures", "glance"): True, ("certificates", "image"): str(tmp_path / "pem"),
              ("backend", "key_manager"): "nova_files"}
    for option, value in wanted.items():
        CONF.set_override(option[0], value, option[1])
    try:
        image = give("signed", **signing.signed(bytes(1024), signer, "signer"))
        server = tenant.boot(flavor, image, trusted_image_certificates=["root"])
        assert admin.wait(server, "ACTIVE")["trusted_image_certificates"] == ["root"]
        assert "trusted" in refusal(tenant, flavor, image, trusted_image_certificates=["other"])
        assert "certificate none cannot be read" in refusal(tenant, flavor, image, trusted_image_certificates=["none"])
        assert "is not signed" in refusal(tenant, flavor, image_id)
        assert "signature of its kernel_id" in refusal(tenant, flavor, give("signed", kernel_id=image, **signing.signed(
            bytes(1024), signer, "signer")))
    finally:
        for option in wanted:
            CONF.clear_override(*option)


def test_image_metadata_item_added_during_a_delete_is_preserved(suite, admin, image_id, monkeypatch):
    path = f"/images/{image_id}/metadata"
    admin.post(path, {"metadata": {"goes": "1"}}, version="2.38")
    real = image_metadata._set

    def set_late(*args, **named):
        monkeypatch.setattr(image_metadata, "_set", real)
        admin.post(path, {"metadata": {"came": "2"}}, version="2.38")
        return real(*args, **named)

    try:
        monkeypatch.setattr(image_metadata, "_set", set_late)
        admin.delete(f"{path}/goes", version="2.38")
        assert admin.get(path, version="2.38")["metadata"] == {"came": "2"}
    finally:
        admin.put(path, {"metadata": {}}, version="2.38")


def test_concurrent_image_metadata_updates_respect_the_quota(admin, image_id, monkeypatch):
    path = f"/images/{image_id}/metadata"
    admin.put("/os-quota-sets/p", {"quota_set": {"metadata_items": 2}})
    real = image_metadata._set

    def set_late(*args, **named):
        monkeypatch.setattr(image_metadata, "_set", real)
        admin.post(path, {"metadata": {"second": "2"}}, version="2.38")
        return real(*args, **named)

    try:
        admin.put(path, {"metadata": {"first": "1"}}, version="2.38")
        monkeypatch.setattr(image_metadata, "_set", set_late)
        with pytest.raises(Failed, match="Image metadata limit exceeded") as failed:
            admin.post(path, {"metadata": {"third": "3"}}, version="2.38")
        assert failed.value.code == 403
        assert admin.get(path, version="2.38")["metadata"] == {"first": "1", "second": "2"}
        admin.delete(f"{path}/first", version="2.38")
    finally:
        admin.put(path, {"metadata": {}}, version="2.38")
        admin.delete("/os-quota-sets/p")
