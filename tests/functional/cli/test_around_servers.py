"""Commands for resources of servers: images, networks, volumes, shares, instance actions, consoles."""

import os
import subprocess
import sys

import pytest

from nova import bus, context
from nova.api import auth
from nova.api.service import ApiService
from nova.conf import CONF
from nova.db.networks import floating_ips
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.objects.volumes.share import Share
from nova.rpcapi.volumes import Shares, Volumes
from tests.functional.cli.conftest import run
from tests.functional.cli.keystone import PROJECT
from tests.functional.client import wait_for
from tests.functional.networks.neutron_server import NeutronServer


@pytest.fixture
def blue(suite, networks, project):
    uuid = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="blue", cidr="10.31.0.0/24", gateway="", bridge="")).uuid
    yield uuid
    for server in project.get("/servers")["servers"]:
        project.delete(f"/servers/{server['id']}")
        project.wait_gone(server["id"])
    networks.delete(context.admin(), uuid)


# --- images ------------------------------------------------------------------------------------------
def test_image_list_and_show_commands(nova, image_id):
    assert [image_id, "tiny", "ACTIVE", ""] in nova("image-list").rows
    assert nova("image-show", "tiny", "-f", "json").document["id"] == image_id
    assert "nova image-list shows every image" in nova("image-show", "nothing", code=3).err


def test_image_backup_rebuild_and_rescue_commands(nova, server, project):
    name, uuid = server
    made = nova("image-create", "--metadata", "x=y", "--poll", name, "copy", "-f", "json").document
    assert nova("image-show", "copy", "-f", "json").document["metadata x"] == "y"
    assert nova("image-show", made["id"]).code == 0
    nova("backup", name, "daily-1", "daily", 1)
    wait_for(lambda: "daily-1" in nova("image-list").out)
    project.wait(uuid, "ACTIVE")
    rebuilt = nova("rebuild", "--poll", "--name", "new", "--meta", "a=b", name, "copy", "-f", "json")
    assert rebuilt.document["metadata"] == {"a": "b"}
    assert "Server rebuilding..." in rebuilt.err
    rescued = nova("rescue", "--image", "tiny", "--password", "s3cret", "new", "-f", "json").document
    assert rescued == {"adminPass": "s3cret"}
    project.wait(uuid, "RESCUE")
    nova("unrescue", "new")
    project.wait(uuid, "ACTIVE")
    for image in ("copy", "daily-1"):
        project.delete(f"/images/{nova('image-show', image, '-f', 'json').document['id']}", version="2.35")


# --- networks ----------------------------------------------------------------------------------------
def test_interface_attach_list_and_detach_commands(nova, project, flavor, blue):
    booted = nova("boot", "--flavor", flavor, "--image", "tiny", "--nic", "net-name=blue,v4-fixed-ip=10.31.0.9",
                  "--poll",
                  "web", "-f", "json").document
    assert booted["blue network"] == "10.31.0.9"
    assert nova("list").rows[0][-1] == "blue=10.31.0.9"
    attached = nova("interface-attach", "--net-id", "blue", "--fixed-ip", "10.31.0.10", "web", "-f", "json").document
    assert [fixed["ip_address"] for fixed in attached["fixed_ips"]] == ["10.31.0.10"]
    project.wait(booted["id"], "ACTIVE")
    listed = wait_for(lambda: len(rows := nova("interface-list", "web").rows) == 2 and rows)
    assert {row[3] for row in listed} == {"10.31.0.9", "10.31.0.10"}
    nova("interface-detach", "web", attached["port_id"])
    wait_for(lambda: len(nova("interface-list", "web").rows) == 1)
    nova("refresh-network", "web")


def test_embedded_network_list_and_show(nova, blue):
    assert [blue, "blue", "10.31.0.0/24"] in nova("network-list").rows
    assert nova("network-show", "blue", "-f", "json").document["id"] == blue
    assert "nova-manage network create" in nova("network-create", "green", "--cidr", "10.32.0.0/24", code=1).err
    assert "nova-manage network delete" in nova("network-delete", "blue", code=1).err


@pytest.fixture
def legacy(suite, identity):
    """Run an API service with [api]legacy enabled, and use it as the compute service of the catalog."""
    CONF.set_override("legacy", True, group="api")
    service = ApiService(suite.transport)
    CONF.clear_override("legacy", group="api")
    service.start()
    identity.catalog["compute"] = f"{service.url}/v2.1"
    yield
    service.stop()


def test_embedded_network_create_and_delete_with_legacy_api(nova, legacy, project):
    made = nova("network-create", "green", "--fixed-range-v4", "10.32.0.0/24", "--dns1", "192.0.2.53", "-f",
                "json").document
    assert (made["label"], made["cidr"], made["dns1"], made["project_id"]) == (
        "green", "10.32.0.0/24", "192.0.2.53", PROJECT)
    assert [made["id"], "green", "10.32.0.0/24"] in nova("network-list").rows
    assert "HTTP 409" in nova("network-create", "green", "--cidr", "10.32.0.0/24", "--share", code=1).err
    assert "cidr" in nova("network-create", "red", code=1).err
    nova("network-delete", "green")
    assert "green" not in [row[1] for row in nova("network-list").rows]


def test_security_group_add_and_remove_of_a_server(nova, server, project):
    name, _ = server
    project.post("/os-security-groups", {"security_group": {"name": "web", "description": "d"}}, version="2.35")
    nova("add-secgroup", name, "web")
    assert {row[1] for row in nova("list-secgroup", name).rows} == {"default", "web"}
    nova("remove-secgroup", name, "web")
    assert [row[1] for row in nova("list-secgroup", name).rows] == ["default"]
    groups = project.get("/os-security-groups", version="2.35")["security_groups"]
    project.delete(f"/os-security-groups/{next(one['id'] for one in groups if one['name'] == 'web')}", version="2.35")


def test_security_group_and_rule_commands(nova, project):
    made = nova("secgroup-create", "rules", "of a test", "-f", "json").document
    group = made[0]["Id"]
    assert made == [{"Id": group, "Name": "rules", "Description": "of a test"}]
    assert [group, "more", "other"] in nova("secgroup-update", "rules", "more", "other").rows
    assert [group, "more", "other"] in nova("secgroup-list").rows
    assert [group, "more", "other", PROJECT] in nova("secgroup-list", "--all-tenants").rows
    added = nova("secgroup-add-rule", "more", "tcp", 22, 23, "192.0.2.0/24", "-f", "json").document
    assert added == [{"IP Protocol": "tcp", "From Port": 22, "To Port": 23, "IP Range": "192.0.2.0/24",
                      "Source Group": None}]
    assert nova("secgroup-add-group-rule", "more", "default", "icmp", -1, -1).rows == [
        ["icmp", "-1", "-1", "-", "default"]]
    assert len(nova("secgroup-list-rules", group).rows) == 2
    assert "nova secgroup-list-rules shows" in nova("secgroup-delete-rule", "more", "tcp", 22, 23, "0.0.0.0/0",
                                                    code=3).err
    nova("secgroup-delete-rule", "more", "TCP", 22, 23, "192.0.2.0/24")
    nova("secgroup-delete-group-rule", "more", "default", "icmp", -1, -1)
    assert nova("secgroup-list-rules", "more", "-f", "json").document == []
    assert "nova secgroup-list shows" in nova("secgroup-list-rules", "nothing", code=3).err
    assert [group, "more", "other"] in nova("secgroup-delete", "more").rows
    assert "more" not in [row[1] for row in nova("secgroup-list").rows]


def test_fixed_ip_add_and_remove_commands(nova, project, flavor, image_id, blue):
    uuid = project.boot(flavor, image_id, name="web", networks=[{"uuid": blue}])
    project.wait(uuid, "ACTIVE")
    nova("add-fixed-ip", "web", "blue")
    addresses = wait_for(lambda: len(found := project.server(uuid)["addresses"]["blue"]) == 2 and found)
    wait_for(lambda: project.server(uuid)["OS-EXT-STS:task_state"] is None)
    nova("remove-fixed-ip", "web", addresses[1]["addr"])
    wait_for(lambda: project.server(uuid)["addresses"]["blue"] == addresses[:1])
    assert "203.0.113.250" in nova("remove-fixed-ip", "web", "203.0.113.250", code=1).err


# --- floating IPs ------------------------------------------------------------------------------------
@pytest.fixture
def pool(suite):
    """Create a pool "public" of two floating IPs."""
    db = suite.conductor.core.db
    db.write(lambda connection: floating_ips.create(connection, "public", "203.0.113.0/30"))
    yield
    for held in db.read(lambda connection: floating_ips.index(connection)):
        if held.project_id:
            db.write(lambda connection, held=held: floating_ips.release(connection, held.uuid))
    db.write(lambda connection: floating_ips.delete(connection, "203.0.113.0/30"))


def test_floating_ip_commands(nova, project, flavor, image_id, blue, pool):
    uuid = project.boot(flavor, image_id, name="web", networks=[{"uuid": blue}])
    fixed = project.wait(uuid, "ACTIVE")["addresses"]["blue"][0]["addr"]
    assert ["public"] in nova("floating-ip-pool-list").rows
    made = nova("floating-ip-create", "public", "-f", "json").document[0]
    assert (made["Pool"], made["Server Id"], made["Fixed IP"]) == ("public", None, None)
    address = made["IP"]
    nova("floating-ip-associate", "--fixed-address", fixed, "web", address)
    assert nova("floating-ip-list").rows == [[made["Id"], address, uuid, fixed, "public"]]
    assert address in nova("list").out
    nova("floating-ip-disassociate", "web", address)
    assert nova("floating-ip-list", "-f", "csv", "--quote", "none").out.splitlines() == [
        "Id,IP,Server Id,Fixed IP,Pool", f"{made['Id']},{address},-,-,public"]
    nova("add-floating-ip", "web", address)
    nova("remove-floating-ip", "web", address)
    assert "HTTP 409" in nova("floating-ip-disassociate", "web", address, code=1).err
    nova("floating-ip-delete", address)
    assert nova("floating-ip-list", "-f", "yaml").out.strip() == "[]"
    assert "nova floating-ip-list shows" in nova("floating-ip-delete", address, code=3).err
    assert "Floating IP pool not found" in nova("floating-ip-create", "elsewhere", code=3).err


def test_floating_ip_bulk_commands(nova, legacy, identity):
    nova("floating-ip-bulk-create", "--pool", "wide", "203.0.113.64/30")
    try:
        listed = nova("floating-ip-bulk-list", "-f", "json").document
        assert {(one["pool"], one["project_id"], one["instance_uuid"]) for one in listed
                if one["address"].startswith("203.0.113.6")} == {("wide", None, None)}
        assert "HTTP 404" in nova("floating-ip-bulk-list", "--host", "nowhere", code=3).err
    finally:
        nova("floating-ip-bulk-delete", "203.0.113.64/30")
    assert "wide" not in nova("floating-ip-bulk-list").out


def test_dns_commands(nova, legacy):
    nova("dns-create-public-domain", "--project", PROJECT, "example.test")
    nova("dns-create-private-domain", "--availability-zone", "nova", "inside.test")
    domains = nova("dns-domains", "-f", "json").document
    assert {"domain": "inside.test", "scope": "private", "project": None, "availability_zone": "nova"} in domains
    assert {"domain": "example.test", "scope": "public", "project": PROJECT, "availability_zone": None} in domains
    nova("dns-create", "203.0.113.1", "www", "example.test")
    assert nova("dns-list", "--ip", "203.0.113.1", "example.test").rows == [["203.0.113.1", "www", "example.test"]]
    assert nova("dns-list", "--name", "www", "example.test").rows == [["203.0.113.1", "www", "example.test"]]
    assert nova("dns-list", "example.test", code=2).err
    nova("dns-delete", "example.test", "www")
    assert "HTTP 404" in nova("dns-list", "--name", "www", "example.test", code=3).err
    for domain in ("example.test", "inside.test"):
        nova("dns-delete-domain", domain)
    assert not {"example.test", "inside.test"} & {row[0] for row in nova("dns-domains").rows}


def test_commands_without_the_legacy_api_suggest_an_alternative(nova):
    assert "nova-manage floating" in nova("floating-ip-bulk-list", code=1).err
    assert "[api]legacy" in nova("dns-domains", code=1).err


# --- volumes -----------------------------------------------------------------------------------------
@pytest.fixture
def volumes(suite, project, server):
    """Return the ids of two volumes, "data" and "more", by name."""
    made = {name: project.post("/os-volumes", {"volume": {"size": 1, "display_name": name}},
                               version="2.35")["volume"]["id"]
            for name in ("data", "more")}
    path = "/os-volumes/{}"
    for uuid in made.values():
        wait_for(lambda uuid=uuid: project.get(path.format(uuid), version="2.35")["volume"]["status"] == "available")
    yield made
    project.delete(f"/servers/{server[1]}")
    project.wait_gone(server[1])
    books = bus.client(suite.transport, Volumes)
    for uuid in made.values():
        books.delete(context.admin(), uuid)
    wait_for(lambda: not {volume.uuid for volume in books.index(context.admin())} & set(made.values()))
    assert not {file.partition(".")[0] for file in os.listdir(CONF.volume.pool)} & set(made.values())


def test_volume_attach_update_and_detach_commands(nova, server, volumes, project):
    name, uuid = server
    asked = nova("volume-attach", "--delete-on-termination", name, "data", "-f", "json").document
    assert asked["volumeId"] == volumes["data"]
    shown = wait_for(lambda: nova("volume-attachments", name, "-f", "json").document)
    assert (shown[0]["VOLUME ID"], shown[0]["DELETE ON TERMINATION"]) == (volumes["data"], True)
    project.wait_idle(uuid)
    nova("volume-update", "--no-delete-on-termination", name, "data", "data")
    assert nova("volume-attachments", name, "-f", "json").document[0]["DELETE ON TERMINATION"] is False
    assert "ID" in nova("--os-compute-api-version", "2.60", "volume-attachments", name).out.splitlines()[1]
    wait_for(lambda: run("volume-detach", name, "data").code == 0)
    wait_for(lambda: nova("volume-attachments", name).rows == [])


# --- shares ------------------------------------------------------------------------------------------
def test_share_attach_list_show_and_detach_commands(suite, nova, server, settled):
    name, uuid = server
    books = bus.client(suite.transport, Shares)
    share = books.create(context.admin(), Share(uuid=new_uuid(), project_id=PROJECT, name="docs")).uuid
    nova("stop", name)
    settled(uuid, "SHUTOFF")
    assert nova("share-attach", "--tag", "docs", name, share, "-f", "json").document["tag"] == "docs"
    wait_for(lambda: nova("share-list", name).rows == [[share, "inactive", "docs"]])
    assert nova("share-show", name, share, "-f", "json").document["status"] == "inactive"
    assert "2.97" in nova("--os-compute-api-version", "2.96", "share-list", name, code=2).err
    nova("share-detach", name, share)
    wait_for(lambda: nova("share-list", name).rows == [])
    wait_for(lambda: run("start", name).code == 0)
    settled(uuid, "ACTIVE")
    books.delete(context.admin(), share)


# --- instance actions --------------------------------------------------------------------------------
def test_instance_action_list_and_show_commands(nova, server, settled):
    name, uuid = server
    nova("stop", name)
    settled(uuid, "SHUTOFF")
    listed = nova("instance-action-list", name)
    assert [row[0] for row in listed.rows] == ["create", "stop"]
    assert len(nova("instance-action-list", "--limit", 1, name).rows) == 1
    shown = nova("instance-action", name, listed.rows[1][1], "-f", "json").document
    assert (shown["action"], [event["result"] for event in shown["events"]]) == ("stop", ["Success"])
    nova("delete", name)
    wait_for(lambda: nova("list", "-f", "json").document == [])
    assert nova("instance-action-list", uuid).rows[-1][0] == "delete"


def test_watch_shows_the_steps_of_a_build(nova, project, flavor, image_id, driver):
    driver.behaviour.latency["spawn"] = 2
    project.boot(flavor, image_id, name="web")
    watched = nova("watch", "web")
    steps = watched.out.splitlines()
    assert "create: req-" in steps[0]
    assert any("compute__do_build_and_run_instance" in line and "Success after" in line for line in steps), watched.out
    assert steps[-1] == "The server is ACTIVE."


def test_watch_of_a_deletion_ends_with_the_server(nova, server, driver):
    name, uuid = server
    driver.behaviour.latency["destroy"] = 1
    nova("delete", name)
    watched = nova("watch", uuid)
    assert watched.out.endswith("The server is deleted.\n")


def test_explain_shows_why_no_host_was_found(nova, project, image_id):
    huge = project.flavor(ram=1 << 24)
    uuid = project.boot(huge, image_id, name="web")
    project.wait(uuid, "ERROR")
    explained = nova("explain", "web", code=1)
    assert "No valid host was found" in explained.out
    assert "RAM" in explained.out or "MEMORY_MB" in explained.out, explained.out
    assert "What to do: request a smaller flavor" in explained.out
    assert "The server is ERROR.\n" in nova("watch", "web", code=1).out


def test_boot_with_poll_reports_the_fault_of_the_server(nova, project, image_id):
    huge = project.flavor(ram=1 << 24)
    ended = nova("boot", "--flavor", huge, "--image", "tiny", "--nic", "none", "--poll", "web", code=1)
    assert "No valid host was found" in ended.err
    assert "nova explain" in ended.err


def test_explain_without_a_failure_reports_the_status(nova, server):
    assert nova("explain", server[0]).out.startswith("Nothing failed. The server is ACTIVE;")


# --- shelving, restoring, passwords and consoles -----------------------------------------------------
def test_shelve_offload_and_unshelve_commands(nova, server, project):
    name, uuid = server
    nova("shelve", name)
    project.wait(uuid, "SHELVED", "SHELVED_OFFLOADED")
    run("shelve-offload", name)
    project.wait(uuid, "SHELVED_OFFLOADED")
    nova("unshelve", name)
    project.wait(uuid, "ACTIVE")


@pytest.fixture
def reclaimed_late():
    CONF.set_override("reclaim_instance_interval", 3600)
    yield
    CONF.clear_override("reclaim_instance_interval")


def test_soft_deleted_server_can_be_restored(nova, server, settled, reclaimed_late):
    name, uuid = server
    assert "HTTP 409" in nova("restore", name, code=1).err
    nova("delete", name)
    settled(uuid, "SOFT_DELETED")
    nova("restore", uuid)
    settled(uuid, "ACTIVE")
    nova("force-delete", name)


def test_guest_password_commands(nova, server, settled, monkeypatch):
    name, uuid = server
    answers = iter(["one", "two", "three", "three"])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(answers))
    assert "The passwords differ" in nova("set-password", name, code=2).err
    nova("set-password", name)
    settled(uuid, "ACTIVE")
    assert nova("instance-action-list", name).rows[-1][0] == "changePassword"
    assert nova("get-password", name).out == "\n"
    nova("clear-password", name)


def test_watch_shows_crash_dump_and_lock_actions(nova, server, settled):
    name, uuid = server
    nova("trigger-crash-dump", name)
    settled(uuid, "ACTIVE")
    assert nova("instance-action-list", name).rows[-1][0] == "trigger_crash_dump"
    nova("lock", name)
    watched = nova("watch", name).out.splitlines()
    assert watched[0].partition(" ")[2].startswith("lock: req-")
    assert watched[1:] == ["The server is ACTIVE."]


def test_vnc_console_command_returns_a_url(nova, server):
    for version in ("2.1", "2.latest"):
        (kind, url), = nova("--os-compute-api-version", version, "get-vnc-console", server[0], "novnc").rows
        assert kind == "novnc"
        assert url.startswith("http")


@pytest.mark.parametrize("command", [["get-spice-console", "spice-html5"], ["get-serial-console"], ["get-mks-console"],
                                     ["get-rdp-console"]])
def test_unavailable_console_types_are_refused(nova, server, command):
    ended = run(command[0], server[0], *command[1:])
    assert ended.out.count("://") == 1 if ended.code == 0 else "Unavailable console type" in ended.err


def test_ssh_connects_to_the_address_of_the_server(nova, flavor, blue, tmp_path):
    nova("boot", "--flavor", flavor, "--image", "tiny", "--nic", "net-id=" + blue + ",v4-fixed-ip=10.31.0.9", "--poll",
         "web")
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho ssh \"$@\"\n")
    fake.chmod(0o755)
    command = "import sys; from nova.cli.main import main; sys.exit(main())"
    ended = subprocess.run([sys.executable, "-c", command, "ssh", "-i", "key", "--extra-opts", "-o A=b", "me@web"],
                           text=True,
                           env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}, capture_output=True,
                           timeout=120,
                           check=True)
    assert ended.stdout == "ssh -4 -p 22 -i key -o A=b -- me@10.31.0.9\n"
    assert "has no such address. Its addresses: 10.31.0.9" in nova("ssh", "--ipv6", "web", code=1).err
    assert "is not in network red: it is in blue" in nova("ssh", "--network", "red", "web", code=1).err


# --- networks of Neutron -----------------------------------------------------------------------------
@pytest.fixture
def neutron(identity):
    running = NeutronServer()
    identity.catalog["network"] = running.url
    yield running
    running.stop()


def test_network_list_and_show_with_neutron(nova, neutron):
    uuid = neutron.network(name="red", project=PROJECT, cidr="10.60.0.0/24")
    bare = neutron.network(name="bare", project=PROJECT, cidr=None)
    assert nova("network-list").rows == [[bare, "bare", ""], [uuid, "red", "10.60.0.0/24"]]
    assert nova("network-show", "red", "-f", "json").document["id"] == uuid
    neutron.network(name="red", project=PROJECT)
    assert "There are 2 networks with the name red" in nova("network-show", "red", code=3).err


def test_network_create_with_neutron_is_atomic(nova, neutron):
    made = nova("network-create", "blue", "--cidr", "10.70.0.0/24", "--dns1", "10.70.0.2", "-f", "json").document
    (subnet,) = neutron.rows["subnets"].values()
    assert (made["name"], made["cidr"], made["subnets"]) == ("blue", "10.70.0.0/24", [subnet["id"]])
    assert (subnet["ip_version"], subnet["dns_nameservers"]) == (4, ["10.70.0.2"])
    nova("network-delete", "blue")
    assert nova("network-list").rows == []
    neutron.faults["POST", "subnets"] = [400]
    assert "HTTP 400" in nova("network-create", "blue", "--cidr", "10.70.0.0/24", code=1).err
    assert neutron.rows["networks"] == {}


# --- role member -------------------------------------------------------------------------------------
@pytest.fixture
def as_member(monkeypatch):
    """Give the client's user the role "member"."""
    real = auth._noauth

    def asked(environ, *rest):
        return real({**environ, "HTTP_X_ROLES": "member"} if "nova-cli" in environ.get("HTTP_USER_AGENT", "")
                    else environ,
                    *rest)

    monkeypatch.setattr(auth, "_noauth", asked)


def test_explain_hides_host_counts_from_members(nova, project, image_id, as_member):
    uuid = project.boot(project.flavor(ram=1 << 24), image_id, name="web")
    project.wait(uuid, "ERROR")
    explained = nova("explain", "web", code=1).out
    assert "No valid host was found" in explained
    assert "MEMORY_MB" not in explained
    assert "host refused" not in explained
    assert "host refused" not in nova("watch", "web", code=1).out


def test_admin_only_commands_are_refused_to_members(nova, server, as_member):
    assert nova("availability-zone-list").rows == [["nova", "available"]]
    for command in ("service-list", "hypervisor-list", "aggregate-list", "usage-list", "migration-list"):
        assert "Your roles do not allow it" in nova(command, code=1).err
    assert "OS-EXT-SRV-ATTR:host" not in nova("show", server[0], "-f", "json").document
    assert nova("list").rows[0][1] == server[0]
