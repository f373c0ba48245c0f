"""Operations whose own URL no other test requests."""

import pytest

from tests.functional.client import Client
from tests.functional.conftest import remove_images
from tests.functional.refusals import NIL
from tests.functional.several_hosts import newest_action, refused


@pytest.fixture
def old(suite):
    return Client(suite.url, version="2.35")


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, tags=["one", "two"])
    admin.wait(uuid, "ACTIVE")
    return uuid


def test_show_an_api_version_by_its_id(admin):
    shown = admin.get("/versions/v2.1")["version"]
    assert (shown["id"], shown["status"], shown["min_version"]) == ("v2.1", "CURRENT", "2.1")
    assert refused(lambda: admin.get("/versions/v3"))[0] == 404


def test_list_the_extra_specs_of_a_flavor(admin):
    flavor = admin.flavor()
    assert admin.get(f"/flavors/{flavor}/os-extra_specs") == {"extra_specs": {}}
    admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"hw:cpu_policy": "shared"}})
    assert admin.get(f"/flavors/{flavor}/os-extra_specs") == {"extra_specs": {"hw:cpu_policy": "shared"}}


def test_baremetal_nodes_are_not_implemented_without_ironic(old):
    assert refused(lambda: old.get("/os-baremetal-nodes"))[0] == 501
    assert refused(lambda: old.get("/os-baremetal-nodes/1"))[0] == 501


def test_hypervisor_statistics_are_the_sum_of_all_hypervisors(admin, server):
    summed = admin.get("/os-hypervisors/statistics", version="2.87")["hypervisor_statistics"]
    each = admin.get("/os-hypervisors/detail", version="2.87")["hypervisors"]
    for name in ("vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "running_vms"):
        assert summed[name] == sum(one[name] for one in each), name
    assert summed["count"] == len(each)


def test_default_quotas_are_those_of_the_default_class(admin):
    kept = admin.get("/os-quota-class-sets/default")["quota_class_set"]
    shown = admin.get("/os-quota-sets/somebody/defaults")["quota_set"]
    assert shown.pop("id") == "somebody"
    assert shown == {name: kept[name] for name in shown}


def test_both_volume_lists_show_volumes_in_full(old):
    volume = old.post("/os-volumes", {"volume": {"size": 1, "display_name": "v"}})["volume"]["id"]
    listed = old.get("/os-volumes/detail")["volumes"]
    assert [(one["id"], one["displayName"], one["size"]) for one in listed] == [(volume, "v", 1)]
    assert listed == old.get("/os-volumes")["volumes"]
    old.delete(f"/os-volumes/{volume}")


def test_pause_unpause_suspend_and_resume_a_server(admin, server):
    admin.action(server, "pause", expect=202)
    admin.wait(server, "PAUSED")
    admin.action(server, "unpause", expect=202)
    admin.wait(server, "ACTIVE")
    admin.action(server, "suspend", expect=202)
    admin.wait(server, "SUSPENDED")
    admin.action(server, "resume", expect=202)
    admin.wait(server, "ACTIVE")


def test_delete_a_single_tag_of_a_server(admin, server):
    admin.delete(f"/servers/{server}/tags/one", expect=204)
    assert admin.get(f"/servers/{server}/tags") == {"tags": ["two"]}
    assert refused(lambda: admin.delete(f"/servers/{server}/tags/one"))[0] == 404


@pytest.mark.usefixtures("second")
def test_resize_confirm_and_revert_by_os_volumes_boot(admin, server):
    bigger = admin.flavor(vcpus=2)
    path = f"/os-volumes_boot/{server}/action"
    admin.version = "2.102"
    admin.post(path, {"resize": {"flavorRef": bigger}}, expect=202)
    admin.wait(server, "VERIFY_RESIZE")
    admin.post(path, {"revertResize": None}, expect=202)
    assert admin.wait(server, "ACTIVE")["flavor"]["vcpus"] == 1
    admin.post(path, {"resize": {"flavorRef": bigger}}, expect=202)
    admin.wait(server, "VERIFY_RESIZE")
    admin.post(path, {"confirmResize": None}, expect=204)
    assert admin.wait(server, "ACTIVE")["flavor"]["vcpus"] == 2


def test_power_actions_image_and_rebuild_by_os_volumes_boot(admin, server, image_id):
    path = f"/os-volumes_boot/{server}/action"
    admin.version = "2.102"
    admin.post(path, {"os-stop": None}, expect=202)
    admin.wait(server, "SHUTOFF")
    admin.post(path, {"os-start": None}, expect=202)
    admin.wait(server, "ACTIVE")
    admin.post(path, {"reboot": {"type": "HARD"}}, expect=202)
    admin.wait(server, "ACTIVE")
    admin.post(path, {"trigger_crash_dump": None}, expect=202)
    admin.wait_idle(server)
    assert newest_action(admin, server, "trigger_crash_dump")["events"][0]["result"] == "Success"
    saved = admin.post(path, {"createImage": {"name": "saved"}}, expect=202)["image_id"]
    admin.wait_idle(server)
    admin.post(path, {"rebuild": {"imageRef": saved}}, expect=202)
    assert admin.wait(server, "ACTIVE")["image"]["id"] == saved
    remove_images(image_id)


def test_embedded_volumes_have_no_snapshots(old):
    volume = old.post("/os-volumes", {"volume": {"size": 1}})["volume"]["id"]
    assert old.get("/os-snapshots") == old.get("/os-snapshots/detail") == {"snapshots": []}
    assert refused(lambda: old.post("/os-snapshots", {"snapshot": {"volume_id": volume}})) == (
        400, "Invalid volume: volumes of the embedded back end have no snapshots")
    assert refused(lambda: old.post("/os-snapshots", {"snapshot": {"volume_id": NIL}})) == (
        404, f"Volume {NIL} could not be found.")
    assert refused(lambda: old.get(f"/os-snapshots/{NIL}")) == (404, f"Snapshot {NIL} could not be found.")
    assert refused(lambda: old.delete(f"/os-snapshots/{NIL}")) == (404, f"Snapshot {NIL} could not be found.")
    old.delete(f"/os-volumes/{volume}")
