"""Containers (virt_type lxc) through the API and all services, on a host with a libvirtd of its own."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.cluster import Cluster
from tests.integration.containers.container_lab import loops_of, make_archive, needs_containers
from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

pytestmark = [needs_containers, needs_hosts, pytest.mark.root]
WAIT = 120.0


@contextlib.contextmanager
def container_cloud(rabbit: Rabbit, hosts: RealHosts) -> Iterator[Cluster]:
    sections = {name: dict(values) for name, values in hosts.options().items()}
    sections.setdefault("libvirt", {}).update(virt_type="lxc", connection_uri="lxc:///system")
    sections.setdefault("DEFAULT", {}).update(allow_resize_to_same_host=True)
    url, instances = rabbit.new_vhost(), hosts.site.state / "instances"
    with Cluster(url, None, computes=0, conductors=1, schedulers=1, options=sections,
                 places=hosts.places(rabbit, url, instances), parent=str(hosts.site.directory)) as nova:
        yield nova


def output(nova: Cluster, uuid: str) -> str:
    answer = nova.api.request("POST", f"/servers/{uuid}/action", {"os-getConsoleOutput": {}})
    return str(answer.json()["output"]) if answer.status_code == 200 else ""


def wait_for(nova: Cluster, uuid: str, text: str, count: int = 1) -> None:
    try:
        eventually(lambda: output(nova, uuid).count(text) >= count, WAIT, f"{text} {count} times on the console",
                   interval=0.5)
    except BaseException as error:
        raise AssertionError(output(nova, uuid)) from error


def test_containers_through_the_api(rabbitmq: Rabbit, tmp_path: pathlib.Path) -> None:
    archive = make_archive(tmp_path / "root.tar.gz", "gz", network=True)
    with real_hosts(1) as hosts, container_cloud(rabbitmq, hosts) as nova:
        api = nova.api
        nova.flavor("small", ram=64, disk=1)
        nova.flavor("large", ram=96, disk=2)
        image = nova.import_image(archive, "root", "raw")
        uuid = api.boot("first", imageRef=image, flavorRef="small")
        api.wait(uuid, "ACTIVE", WAIT)
        wait_for(nova, uuid, "metadata: i-00000001")
        assert ", boot 1" in output(nova, uuid)
        for name, argument, status in [
                ("pause", None, "PAUSED"), ("unpause", None, "ACTIVE"), ("os-stop", None, "SHUTOFF"),
                ("os-start", None, "ACTIVE")]:
            api.action(uuid, name, argument)
            api.wait(uuid, status, WAIT)
        wait_for(nova, uuid, "metadata: i-00000001", 2)
        api.action(uuid, "reboot", {"type": "HARD"})
        wait_for(nova, uuid, "metadata: i-00000001", 3)
        for action, argument, code in [
                ("suspend", None, 202), ("rescue", {}, 200), ("trigger_crash_dump", None, 202),
                ("os-migrateLive", {"host": None, "block_migration": "auto"}, 202),
                ("changePassword", {"adminPass": "x"}, 501)]:
            answer = api.request("POST", f"/servers/{uuid}/action", {action: argument})
            assert answer.status_code == code, (action, answer.text)
            if code != 501:
                eventually(lambda: api.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"][0]["message"],
                           WAIT, f"{action} has failed", interval=0.2)
            eventually(lambda: settled(nova, uuid), WAIT, f"{action} has ended", interval=0.2)
            assert api.show(uuid)["status"] == "ACTIVE", action

        volume = nova.manage("volume", "create", "--project", "p" * 32, "--size", "1", "--name", "data").strip()
        api.post(f"/servers/{uuid}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
        eventually(lambda: settled(nova, uuid), WAIT, "the volume is attached")
        api.action(uuid, "os-stop")
        api.wait(uuid, "SHUTOFF", WAIT)
        api.action(uuid, "resize", {"flavorRef": "large"})
        api.wait(uuid, "VERIFY_RESIZE", WAIT)
        api.action(uuid, "confirmResize")
        api.wait(uuid, "SHUTOFF", WAIT)
        copy = api.action(uuid, "createImage", {"name": "copy"})["image_id"]
        eventually(lambda: settled(nova, uuid), WAIT, "the image is made")
        twin = api.boot("twin", imageRef=copy, flavorRef="large")
        wait_for(nova, twin, "metadata: i-00000002")
        assert ", boot 4" in output(nova, twin)
        api.action(uuid, "rebuild", {"imageRef": image})
        api.wait(uuid, "SHUTOFF", WAIT)
        api.action(uuid, "os-start")
        wait_for(nova, uuid, "metadata: i-00000001")
        assert ", boot 4" not in output(nova, uuid)
        api.delete(f"/servers/{uuid}/os-volume_attachments/{volume}")
        eventually(lambda: not api.get(f"/servers/{uuid}/os-volume_attachments")["volumeAttachments"], WAIT,
                   "the volume is detached")
        nova.audit()
        nova.delete_all(60)
        host, = hosts.hosts
        eventually(lambda: not host.leftovers(hosts.site.state / "instances"), 10, "nothing of the containers is left")
        assert host.host.run(["virsh", "-q", "-c", "lxc:///system", "list", "--all"]).strip() == ""
        assert not loops_of(hosts.site.directory)
        assert not host.host.run(["ls", "/run/nova-lxc"]).strip()


def settled(nova: Cluster, uuid: str) -> bool:
    return nova.api.show(uuid)["OS-EXT-STS:task_state"] is None
