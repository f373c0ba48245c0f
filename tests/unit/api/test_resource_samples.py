"""Keys and types of responses, in the microversions in which they changed.

``tests/data/resource_samples.json``: per sample a request, the microversion, and the shape of the response
(types in place of values, the first item of lists).
"""

import datetime
import json

import pytest

from nova import image
from nova.objects.accounts.flavor import Flavor
from nova.objects.accounts.keypair import Keypair
from nova.objects.accounts.usage import Quotas
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.service import Service
from nova.objects.images.image import Image
from nova.objects.networks.network import Network, SecurityGroup
from nova.objects.servers import states
from nova.objects.servers.action import Accepted, Action, Event
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration
from nova.objects.servers.server_group import ServerGroup
from nova.rpcapi import accounts, hosts, networks, servers
from tests.paths import DATA
from tests.unit.api.canned import stub

SAMPLES = json.loads((DATA / "resource_samples.json").read_text())
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
PROJECT = "a" * 32
NODE, SERVICE, GROUP, SERVER, NETWORK, IMAGE = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "123456")
SECURITY_GROUP = "00000000-0000-0000-0000-000000000001"

FLAVOR = Flavor(flavorid="7", name="m1", memory_mb=512, vcpus=1, root_gb=1, description="small",
                extra_specs={"hw:cpu_policy": "shared", "hw:numa_nodes": "1"})
PRIVATE = Flavor(flavorid="8", name="m2", memory_mb=512, vcpus=1, is_public=False)
COMPUTE = Service(id=2, uuid=SERVICE, host="host1", binary="nova-compute", up=True, disabled=True,
                  disabled_reason="test", availability_zone="nova", last_seen_up=WHEN)
HYPERVISOR = ComputeNode(
    id=1, uuid=NODE, host="host1", hypervisor_hostname="fake-mini", hypervisor_type="fake", hypervisor_version=1000,
    host_ip="192.0.2.1", service=COMPUTE, disk_available_least=0, uptime="up 93 days", cpu_info={
        "arch": "x86_64", "model": "Nehalem", "vendor": "Intel", "features": ["pge"],
        "topology": {"cores": 1, "threads": 1, "sockets": 4}},
    provider=Provider(uuid=NODE, name="fake-mini", inventories={"VCPU": Inventory(total=2)}))
LIMITS = dict.fromkeys((
    "instances", "cores", "ram", "metadata_items", "injected_files", "injected_file_content_bytes",
    "injected_file_path_bytes", "key_pairs", "server_groups", "server_group_members", "fixed_ips", "floating_ips",
    "security_groups", "security_group_rules"), 10)
KEY = Keypair(id=1, user_id="u", name="key", public_key="ssh-rsa AAAA", fingerprint="44:fe", created_at=WHEN)
ACTION = Action(uuid="a", instance_uuid=SERVER, action="stop", request_id="req-1", user_id="u", project_id=PROJECT,
                start_time=WHEN, updated_at=WHEN, events=[Event(
                    event="compute_stop_instance", start_time=WHEN, finish_time=WHEN, result="Success", host="host1")])
INSTANCE = Instance(id=1, uuid=SERVER, project_id=PROJECT, user_id="u", display_name="s", hostname="s", host="host1",
                    vm_state=states.ACTIVE, flavor=FLAVOR, security_groups=["default"], created_at=WHEN)
AGGREGATE = Aggregate(id=1, uuid=GROUP, name="name", hosts=["host1"], created_at=WHEN, updated_at=WHEN,
                      metadata={"availability_zone": "london", "key": "value"})
MIGRATION = Migration(
    id=1, uuid=GROUP, instance_uuid=SERVER, migration_type="live-migration", status="running", source_compute="host1",
    source_node="host1", dest_compute="host2", dest_node="host2", dest_host="192.0.2.2", old_flavor=FLAVOR,
    new_flavor=FLAVOR, user_id="u", project_id=PROJECT, memory_total=3, memory_processed=1, memory_remaining=2,
    disk_total=3, disk_processed=1, disk_remaining=2, created_at=WHEN, updated_at=WHEN)
SECURE = SecurityGroup(id=1, name="default", description="default", project_id=PROJECT)
NET = Network(uuid=NETWORK, label="private", cidr="10.0.0.0/24", gateway="10.0.0.1", bridge="br1")
PICTURE = Image(id=IMAGE, name="fake", size=1, created_at="2011-01-01T01:02:03Z", properties={
    "architecture": "x86_64", "auto_disk_config": "True", "kernel_id": "nokernel", "ramdisk_id": "nokernel"})
TOGETHER = ServerGroup(uuid=GROUP, name="test", project_id=PROJECT, user_id="u", policy="anti-affinity",
                       rules={"max_server_per_host": 3})


class Pictures:
    def show(self, ctx, image_id, token=None):
        return PICTURE

    def index(self, ctx, filters, limit=None, marker=None, token=None):
        return [PICTURE]

    def set_properties(self, ctx, image_id, properties, replace, token=None, max_properties=-1):
        return PICTURE


@pytest.fixture
def world(api, monkeypatch):
    monkeypatch.setattr(image, "store", Pictures)
    stub(api, "flavors", accounts.Flavors, index=[FLAVOR], update=FLAVOR, access=[PROJECT], add_access=[PROJECT],
         get=lambda flavorid, **_: PRIVATE if flavorid == "8" else FLAVOR,
         create=lambda flavor: flavor, set_extra_specs=lambda specs, **_: specs)
    stub(api, "keypairs", accounts.Keypairs, index=[KEY], get=KEY, create=lambda keypair, imported: keypair)
    stub(api, "services", hosts.Services, index=[COMPUTE], get=COMPUTE, update=COMPUTE,
         update_by_host=lambda disabled, **_: Service(
             uuid=SERVICE, host="host1", binary="nova-compute", disabled=bool(disabled), forced_down=True))
    stub(api, "hypervisors", hosts.Hypervisors, index=[HYPERVISOR], get=HYPERVISOR, servers=[INSTANCE])
    stub(api, "zones", hosts.Zones, index={"nova": True}, detail={"nova": [COMPUTE]})
    stub(api, "aggregates", hosts.Aggregates, index=[AGGREGATE], **dict.fromkeys(
        ("get", "create", "update", "add_host", "remove_host", "set_metadata"), AGGREGATE))
    stub(api, "server_groups", servers.ServerGroups, index=[TOGETHER], get=TOGETHER, create=lambda group: group)
    kept = Quotas(limits=LIMITS, in_use={})
    stub(api, "quotas", accounts.Quotas, **dict.fromkeys(("get", "defaults", "set", "get_class", "set_class"), kept))
    stub(api, "servers", servers.Servers, get=INSTANCE, operate=Accepted(action=ACTION))
    stub(api, "external_events", servers.ExternalEvents, create=[200])
    stub(api, "migrations", servers.Migrations, index=[MIGRATION], in_progress=[MIGRATION], get=MIGRATION)
    stub(api, "actions", servers.Actions, index=[ACTION], get=ACTION)
    stub(api, "networks", networks.Networks, index=[NET], get=NET)
    stub(api, "security_groups", networks.SecurityGroups, index=[SECURE], get=SECURE, create=SECURE,
         add_rule=lambda rule, **_: rule)
    return api


NAMES = {"NODE": NODE, "SERVICE": SERVICE, "GROUP": GROUP, "SERVER": SERVER, "IMAGE": IMAGE, "NET": NETWORK,
         "SG": SECURITY_GROUP, "PROJECT": PROJECT}
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
# Free-form objects, whose keys in the samples need not exist here.
FREE = {"metadata", "cpu_info", "extra_specs"}


def differences(expected, value, path="$"):
    """Return the places where ``value`` differs from the sample.

    Null is always accepted: most values can be unknown.
    """
    if isinstance(expected, dict) and isinstance(value, dict):
        names = set() if path.rpartition(".")[2] in FREE else set(expected) ^ set(value)
        found = [f"{path}: {'lacks' if name in expected else 'has'} {name}" for name in sorted(names)]
        for name in set(expected) & set(value):
            found += differences(expected[name], value[name], f"{path}.{name}")
        return found
    if isinstance(expected, list) and isinstance(value, list):
        return differences(expected[0], value[0], f"{path}[0]") if expected and value else []
    actual = TYPES.get(type(value), type(value).__name__)
    return [] if expected == actual or "null" in (expected, actual) else [f"{path}: {actual} for {expected}"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["sample"])
def test_response_has_the_keys_and_types_of_the_sample(world, sample):
    path = "/".join(NAMES.get(part, part) for part in sample["path"].partition("?")[0].split("/"))
    query = sample["path"].partition("?")[2]
    world.headers = {"X-Project-Id": PROJECT}
    answer = world(sample["method"], f"/v2.1{path}" + (f"?{query}" if query else ""), sample["body"],
                   version=f"2.{sample['version']}", roles=sample["roles"])
    assert answer.status in (200, 201), answer.text
    assert differences(sample["shape"], answer.json) == []
