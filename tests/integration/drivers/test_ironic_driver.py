"""The bare metal driver beyond the contract suite, on a real Ironic (NOVA_TEST_IRONIC) or its stand-in."""

from __future__ import annotations

import base64
import gzip
import pathlib
import uuid
from collections.abc import Iterator

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.objects.servers.console import ConsoleAddress
from nova.operations.framework.guest_driver import BootFiles, InProgress, repeated_step
from nova.virt.ironic.driver import IronicDriver
from tests.integration.drivers.ironic_subject import IronicSubject
from tests.integration.drivers.subject import wait_for
from tests.ironic_service import IronicService


@pytest.fixture(name="metal", scope="module")
def metal_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IronicSubject]:
    subject = IronicSubject(tmp_path_factory.mktemp("ironic"))
    yield subject
    subject.close()


@pytest.fixture(name="subject")
def subject_fixture(metal: IronicSubject) -> Iterator[IronicSubject]:
    yield metal
    metal.remove_guests()


@pytest.fixture(name="stand_in")
def stand_in_fixture(subject: IronicSubject) -> IronicService:
    """The stand-in, for faults that a real Ironic with fake-hardware never has."""
    if not isinstance(subject.ironic, IronicService):
        pytest.skip("fake-hardware has no such fault")
    return subject.ironic


def test_node_has_the_description_of_the_server(subject: IronicSubject) -> None:
    subject.make_driver()
    instance = subject.boot(specs={"capabilities:boot_mode": "uefi", "trait:CUSTOM_FAST": "forbidden"})
    info = subject.ironic.node(instance.node or "")["instance_info"]
    assert info["image_source"] == instance.image_ref
    assert (info["root_gb"], info["memory_mb"], info["local_gb"]) == ("1", "128", "100")
    assert info["capabilities"] == '{"boot_mode": "uefi"}'
    assert (info["display_name"], info["project_id"], info["traits"]) == ("test", "p", [])


def test_start_removes_config_drives_but_no_files_of_other_drivers(subject: IronicSubject) -> None:
    """A nova-compute with another driver may use the same directory."""
    subject.make_driver()
    left, other = (pathlib.Path(CONF.instances_path, str(uuid.uuid4())) for _ in range(2))
    for place in (left, other):
        place.mkdir(parents=True)
        (place / "disk.config").write_bytes(b"an ISO file system")
    (other / "disk").write_bytes(b"the disk of a guest")
    subject.driver.start(lambda *_arguments: None)
    assert not left.exists()
    assert sorted(path.name for path in other.iterdir()) == ["disk", "disk.config"]


def test_config_drive_is_sent_and_its_file_removed(subject: IronicSubject, stand_in: IronicService) -> None:
    instance = subject.server()
    path = pathlib.Path(CONF.instances_path, instance.uuid, "disk.config")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"an ISO file system")
    subject.driver.guests.spawn(instance, BootFiles(config_drive=str(path)))
    sent = stand_in.node(instance.node or "")["instance_info"]["configdrive"]
    assert gzip.decompress(base64.b64decode(sent)) == b"an ISO file system"
    assert not path.parent.exists()


def test_interfaces_are_attached_and_detached(subject: IronicSubject, stand_in: IronicService) -> None:
    instance = subject.boot(network_info=[subject.interface(1)])
    first, second = subject.interface(1), subject.interface(2)

    def attached() -> list[str]:
        return list(stand_in.node(instance.node or "").get("vifs", ()))

    assert attached() == [first.id]
    for _ in range(2):
        subject.driver.interfaces.attach(instance, second)
    assert attached() == [first.id, second.id]
    for _ in range(2):
        subject.driver.interfaces.detach(instance, first)
    assert attached() == [second.id]
    subject.driver.guests.destroy(instance)
    assert attached() == []
    subject.driver.interfaces.detach(instance, second)
    with pytest.raises(exception.GuestNotFound):
        subject.driver.interfaces.attach(instance, second)


def test_interface_verbs_succeed_on_every_ironic(subject: IronicSubject) -> None:
    instance = subject.boot(network_info=[subject.interface(1)])
    for verb in (subject.driver.interfaces.attach, subject.driver.interfaces.detach):
        for _ in range(2):
            verb(instance, subject.interface(2))
    assert subject.state(instance) == states.RUNNING


def test_node_with_another_server_is_refused(subject: IronicSubject) -> None:
    first = subject.boot()
    with pytest.raises(exception.NodeNotReady, match="it has an instance"):
        subject.driver.guests.spawn(subject.server(node=first.node), BootFiles())
    with pytest.raises(exception.NodeNotReady, match="does not exist in Ironic"):
        subject.driver.guests.spawn(subject.server(node=str(uuid.uuid4())), BootFiles())
    assert subject.state(first) == states.RUNNING


def test_node_of_an_earlier_attempt_is_undeployed_first(subject: IronicSubject) -> None:
    instance = subject.boot()
    before = instance.node
    instance.node = next(machine for machine in subject.machines if machine != before)
    subject.driver.guests.spawn(instance, BootFiles())
    assert subject.ironic.node(before or "")["instance_uuid"] is None
    assert subject.ironic.node(instance.node)["instance_uuid"] == instance.uuid


def test_node_of_another_host_is_not_changed_by_uuid(subject: IronicSubject) -> None:
    instance = subject.boot()
    other = IronicDriver("other-host")
    other.manage([machine for machine in subject.machines if machine != instance.node])
    other.guests.remove_orphan(instance.uuid)
    other.guests.stop(instance.uuid)
    assert other.guests.all() == []
    # The host may be taking the node over: the server must not seem to be stopped.
    assert other.guests.power_state(instance.uuid) == states.RUNNING
    assert subject.state(instance) == states.RUNNING


def test_node_of_another_client_of_ironic_is_not_changed(subject: IronicSubject, stand_in: IronicService) -> None:
    """[compute]unknown_guests applies to instances without a server. Ironic's allocations have a uuid, too."""
    node, allocation = subject.machines[0], str(uuid.uuid4())
    subject.driver.manage(subject.machines)
    stand_in.change(node, instance_uuid=allocation, provision_state="active", power_state="power on")
    sent = len(stand_in.calls)
    subject.driver.guests.remove_orphan(allocation)
    subject.driver.guests.stop(allocation)
    assert len(stand_in.calls) == sent
    stand_in.change(node, instance_uuid=None, provision_state="available", power_state="power off")


@pytest.mark.parametrize(("what", "call"), [
    ("evacuate", lambda driver, instance: driver.disks.exist(instance)),
    ("ephemeral", lambda driver, instance: driver.disks.replace(instance, BootFiles(), "t", keep_ephemerals=True)),
    ("image of choice", lambda driver, instance: driver.rescue.begin(instance, Image(id="other"), BootFiles()))])
def test_unsupported_variants_are_refused(subject: IronicSubject, what, call) -> None:  # type: ignore[no-untyped-def]
    instance = subject.boot()
    with pytest.raises(exception.NotImplementedHere, match=what):
        call(subject.driver, instance)
    assert subject.ironic.node(instance.node or "")["provision_state"] == "active"


def test_server_that_boots_from_a_volume_is_refused(subject: IronicSubject) -> None:
    volume = subject.volume(1)
    volume.boot_index = 0
    with pytest.raises(exception.InvalidInput, match="boot from volumes"):
        subject.driver.disks.prepare(subject.server(block_devices=[volume]), BootFiles())


# --- faults ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("target", "state", "verb"), [
    ("rebuild", "deploy failed", lambda driver, instance: driver.disks.replace(instance, BootFiles(), "t")),
    ("rescue", "rescue failed", lambda driver, instance: driver.rescue.begin(instance, instance.image, BootFiles()))])
def test_failed_change_reports_the_error_of_ironic(subject: IronicSubject, stand_in: IronicService, target, state,
                                                   verb) -> None:  # type: ignore[no-untyped-def]
    instance = subject.boot()
    stand_in.failing.add(target)
    with pytest.raises(exception.BareMetalError) as failed:
        verb(subject.driver, instance)
    assert f"{target} does not work" in failed.value.inside
    assert "does not work" not in failed.value.message  # it may contain addresses of management controllers
    assert stand_in.node(instance.node or "")["provision_state"] == state
    subject.driver.guests.destroy(instance)
    assert stand_in.node(instance.node or "")["provision_state"] == "available"


def test_failed_deletion_is_repeated(subject: IronicSubject, stand_in: IronicService) -> None:
    instance = subject.boot()
    stand_in.failing.add("deleted")
    subject.driver.guests.destroy(instance)
    assert stand_in.node(instance.node or "")["provision_state"] == "available"


@pytest.mark.parametrize(("soft", "verb", "state"), [
    ("soft power off", lambda driver, instance: driver.power.off(instance, timeout=5), states.SHUTDOWN),
    ("soft rebooting", lambda driver, instance: driver.power.reboot(instance, hard=False), states.RUNNING)])
def test_soft_change_that_fails_is_followed_by_a_hard_one(subject: IronicSubject, stand_in: IronicService, soft, verb,
                                                          state) -> None:  # type: ignore[no-untyped-def]
    instance = subject.boot()
    stand_in.failing.add(soft)
    verb(subject.driver, instance)
    assert subject.state(instance) == state


def test_power_change_without_effect_fails(subject: IronicSubject, stand_in: IronicService,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    instance = subject.boot()
    monkeypatch.setattr(stand_in, "failing", Always("power off"))
    with pytest.raises(exception.BareMetalError) as failed:
        subject.driver.power.off(instance)
    assert "power off does not work" in failed.value.inside
    assert subject.state(instance) == states.RUNNING


class Always(set[str]):
    """A set of faults that stay."""

    def __init__(self, *faults: str) -> None:
        super().__init__(faults)

    def discard(self, fault: str) -> None: ...


def test_list_of_nodes_is_read_in_the_parts_that_ironic_offers(subject: IronicSubject, stand_in: IronicService) -> None:
    """[api]max_limit of Ironic can be smaller than the limit of the request."""
    stand_in.max_limit = 2
    try:
        assert sorted(IronicDriver("raw").shared_nodes()) == sorted(subject.machines)
    finally:
        stand_in.max_limit = 1000


def test_reboot_that_was_given_up_does_not_count_for_the_next_one(
        subject: IronicSubject, stand_in: IronicService) -> None:
    instance, driver = subject.boot(), IronicDriver("raw")
    for _ in range(2):  # the second request belongs to another step
        sent = len(stand_in.calls)
        with repeated_step({}), pytest.raises(InProgress):
            driver.power.reboot(instance, hard=True)
        assert len(stand_in.calls) == sent + 1
        wait_for(lambda: stand_in.node(instance.node or "")["target_power_state"] is None, 10, "the reboot")


def test_locked_node_is_reported_as_busy(subject: IronicSubject, stand_in: IronicService) -> None:
    instance = subject.boot()
    driver = IronicDriver("raw")
    stand_in.locked.add(instance.node or "")
    with pytest.raises(InProgress, match="locked"):
        driver.power.off(instance)
    stand_in.locked.clear()


def test_ironic_that_does_not_respond_is_an_unavailable_hypervisor(subject: IronicSubject) -> None:
    CONF.set_override("endpoint_override", "http://127.0.0.1:9", "ironic")
    try:
        with pytest.raises(exception.HypervisorUnavailable):
            IronicDriver("raw").shared_nodes()
    finally:
        CONF.set_override("endpoint_override", subject.ironic.url, "ironic")


def test_serial_console_is_started_by_ironic(subject: IronicSubject, stand_in: IronicService) -> None:
    instance = subject.boot()
    assert subject.driver.consoles.address(instance.uuid, "vnc") is None
    CONF.set_override("serial_console_state_timeout", 1, "ironic")
    assert subject.driver.consoles.address(instance.uuid, "serial") is None
    stand_in.consoles[instance.node or ""] = {"type": "socat", "url": "tcp://192.0.2.7:20000"}
    assert subject.driver.consoles.address(instance.uuid, "serial") == ConsoleAddress(host="192.0.2.7", port=20000)
    stand_in.consoles[instance.node or ""] = {"type": "shellinabox", "url": "http://192.0.2.7:20000"}
    assert subject.driver.consoles.address(instance.uuid, "serial") is None
    stand_in.change(instance.node or "", console=False)
    stand_in.locked.add(instance.node or "")
    with pytest.raises(exception.InstanceNotReady):
        subject.driver.consoles.address(instance.uuid, "serial")
    stand_in.locked.clear()
    CONF.clear_override("serial_console_state_timeout", "ironic")
