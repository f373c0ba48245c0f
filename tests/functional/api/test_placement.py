"""The Placement API on the providers and claims of the suite: reads, external providers, allocations, versions."""

import concurrent.futures
import uuid

import pytest
from osc_placement.resources import (
    aggregate,
    allocation,
    allocation_candidate,
    inventory,
    resource_class,
    resource_provider,
    trait,
    usage,
)

from tests.functional.client import wait_for
from tests.functional.placement import Commands, Placement

BANDWIDTH = "NET_BW_EGR_KILOBIT_PER_SEC"


@pytest.fixture
def placement(suite):
    """Return a client; all external providers, consumers and names that the test leaves are removed."""
    client = Placement(suite.url)
    yield client
    remove_all(client)


def remove_all(client):
    providers = [each for each in client.get("/resource_providers")["resource_providers"]
                 if "COMPUTE_NODE" not in client.get(f"/resource_providers/{each['uuid']}/traits")["traits"]]
    for provider in client.get("/resource_providers")["resource_providers"]:
        for consumer in client.get(f"/resource_providers/{provider['uuid']}/allocations")["allocations"]:
            client.call("DELETE", f"/allocations/{consumer}", expect=None)
    while providers:
        providers = [each for each in providers
                     if client.call("DELETE", f"/resource_providers/{each['uuid']}", expect=None).status_code == 409]
    root = client.root()
    traits = client.get(f"/resource_providers/{root}/traits")
    added = [each for each in traits["traits"] if each.startswith("CUSTOM_TEST")]
    if added:
        client.put(f"/resource_providers/{root}/traits", {
            **traits, "traits": [each for each in traits["traits"] if each not in added]})
    for name in client.get("/traits", name="startswith:CUSTOM_TEST")["traits"]:
        client.delete(f"/traits/{name}")


def bandwidth_in_use(fleet):
    with fleet.view() as view:
        return sum(child.inventories[BANDWIDTH].used for child in view.tree(0) if BANDWIDTH in child.inventories)


def consumer():
    return str(uuid.uuid4())


# --- documents and versions --------------------------------------------------------------------
def test_version_document_needs_no_token(placement):
    for path in ("", "/"):
        (version,) = placement.get(path, headers={"X-Auth-Token": ""})["versions"]
        assert (version["min_version"], version["max_version"], version["status"]) == ("1.0", "1.39", "CURRENT")


def test_versions_outside_the_range_are_not_acceptable(placement):
    error = placement.error("GET", "/resource_providers", version=40, status=406)
    assert (error["min_version"], error["max_version"]) == ("1.0", "1.39")
    assert "invalid version" in placement.error("GET", "/traits", version="x", status=400)["detail"]


def test_responses_name_their_version(placement):
    response = placement.get("/resource_providers", version=3, expect=None)
    assert response.headers["OpenStack-API-Version"] == "placement 1.3"
    assert response.headers["Vary"].lower() == "openstack-api-version"
    assert "Cache-Control" not in response.headers
    response = placement.get("/resource_providers", version=15, expect=None)
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["Last-Modified"].endswith("GMT")


@pytest.mark.parametrize(("path", "since"), [
    ("/resource_classes", 2), ("/traits", 6), ("/usages?project_id=p", 9),
    ("/allocation_candidates?resources=VCPU:1", 10)])
def test_resources_have_first_versions(placement, path, since):
    placement.error("GET", path, version=since - 1, status=404)
    placement.get(path, version=since)


def test_fields_of_a_provider_per_version(placement):
    root = placement.root()
    relations = {
        version: [link["rel"] for link in placement.get(f"/resource_providers/{root}", version=version)["links"]]
        for version in (0, 1, 6, 11)}
    assert relations[0] == ["self", "inventories", "usages"]
    assert [len(relations[version]) for version in (1, 6, 11)] == [4, 5, 6]
    assert "root_provider_uuid" not in placement.get(f"/resource_providers/{root}", version=13)
    shown = placement.get(f"/resource_providers/{root}", version=14)
    assert (shown["root_provider_uuid"], shown["parent_provider_uuid"]) == (root, None)


def test_errors_have_codes_from_1_23(placement):
    missing = f"/resource_providers/{uuid.uuid4()}"
    assert "code" not in placement.error("GET", missing, version=22, status=404)
    assert placement.error("GET", missing, version=23, status=404)["code"] == "placement.undefined_code"
    assert placement.error("GET", "/allocation_candidates", status=400)["code"] == "placement.query.missing_value"
    error = placement.error("PATCH", "/traits", status=405)
    assert "PATCH" in error["detail"]
    assert error["request_id"].startswith("req-")


def test_bodies_must_be_json(placement):
    response = placement.session.post(f"{placement.url}/resource_providers", data="<name/>",
                                      headers={"Content-Type": "text/xml"}, timeout=60)
    assert response.status_code == 415
    response = placement.session.post(f"{placement.url}/resource_providers", data="{",
                                      headers={"Content-Type": "application/json"}, timeout=60)
    assert (response.status_code, response.json()["errors"][0]["title"]) == (400, "Bad Request")


def test_roles(suite, placement):
    member = Placement(suite.url, user="m", project="mine", roles="member,reader")
    service = Placement(suite.url, user="neutron", project="service", roles="service")
    member.error("GET", "/resource_providers", status=403)
    member.error("GET", "/usages", project_id="p", status=403)
    assert member.get("/usages", project_id="mine") == {"usages": {}}
    assert service.get("/resource_providers")["resource_providers"]
    assert service.get("/usages", project_id="mine") == {"usages": {}}


# --- compute nodes and servers -----------------------------------------------------------------
def test_a_server_is_a_consumer(suite, placement, admin, flavor, image_id):
    server = admin.boot(flavor, image_id)
    admin.wait(server, "ACTIVE")
    root = placement.root()
    shown = placement.get(f"/allocations/{server}")
    assert shown["allocations"][root]["resources"] == {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}
    assert (shown["project_id"], shown["user_id"], shown["consumer_type"]) == ("p", "u", "INSTANCE")
    assert "project_id" not in placement.get(f"/allocations/{server}", version=11)
    assert placement.get(f"/resource_providers/{root}/usages")["usages"] == {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}
    assert list(placement.get(f"/resource_providers/{root}/allocations")["allocations"]) == [server]
    assert placement.get("/usages", project_id="p", version=37)["usages"]["VCPU"] == 1
    assert placement.get("/usages", project_id="p", user_id="x")["usages"] == {}
    assert placement.get("/usages", project_id="p")["usages"]["INSTANCE"]["consumer_count"] == 1
    assert placement.get("/usages", project_id="p", consumer_type="all")["usages"]["all"]["MEMORY_MB"] == 128
    # its claim changes only with the server
    for answer in (placement.allocate(server, {root: {"VCPU": 2}}, 1, expect=409),
                   placement.call("DELETE", f"/allocations/{server}", expect=409)):
        assert "openstack server resize" in answer["errors"][0]["detail"]
    assert placement.get(f"/allocations/{server}") == shown


def test_rows_of_a_compute_node_change_with_nova(placement):
    root = placement.root()
    inventories = placement.get(f"/resource_providers/{root}/inventories")
    same = placement.put(f"/resource_providers/{root}/inventories", inventories)
    assert same["inventories"] == inventories["inventories"]
    inventories["resource_provider_generation"] += 1
    inventories["inventories"]["VCPU"]["total"] += 1
    error = placement.error("PUT", f"/resource_providers/{root}/inventories", inventories)
    assert "cpu_allocation_ratio" in error["detail"]
    placement.error("DELETE", f"/resource_providers/{root}/inventories/VCPU")
    assert "compute service delete" in placement.error("DELETE", f"/resource_providers/{root}")["detail"]
    placement.error("PUT", f"/resource_providers/{root}", {"name": "other"})
    placement.error("PUT", f"/resource_providers/{root}/traits", {
        "resource_provider_generation": placement.generation(root), "traits": []})
    placement.error("POST", "/reshaper", {})


def test_custom_traits_of_a_compute_node_select_it_and_survive_reports(suite, placement, admin, image_id):
    root, name = placement.root(), "CUSTOM_TEST_RACK"
    placement.put(f"/traits/{name}", expect=201)
    before = placement.get(f"/resource_providers/{root}/traits")
    placement.put(f"/resource_providers/{root}/traits", {**before, "traits": [*before["traits"], name]})
    suite.compute._nodes.report(full=True)
    assert name in placement.get(f"/resource_providers/{root}/traits")["traits"]
    flavor = admin.flavor()
    admin.post(f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {f"trait:{name}": "required"}})
    admin.wait(admin.boot(flavor, image_id), "ACTIVE")
    assert placement.error("DELETE", f"/traits/{name}")["detail"].endswith("in use by a resource provider.")
    after = placement.get(f"/resource_providers/{root}/traits")
    placement.put(f"/resource_providers/{root}/traits", {**after, "traits": before["traits"]})
    error = placement.error("PUT", f"/resource_providers/{root}/traits", {**after, "traits": before["traits"]})
    assert error["code"] == "placement.concurrent_update"


def test_aggregates_of_a_compute_node_are_its_host_aggregates(suite, placement, admin):
    made = admin.post("/os-aggregates", {"aggregate": {"name": "placement"}})["aggregate"]
    root, other = placement.root(), str(uuid.uuid4())
    admin.post(f"/os-aggregates/{made['id']}/action", {"add_host": {"host": suite.compute.host}})
    try:
        shown = placement.get(f"/resource_providers/{root}/aggregates")
        assert shown["aggregates"] == [made["uuid"]]
        assert "resource_provider_generation" not in placement.get(f"/resource_providers/{root}/aggregates", version=18)
        error = placement.error("PUT", f"/resource_providers/{root}/aggregates", {**shown, "aggregates": [other]})
        assert "openstack aggregate remove host" in error["detail"]
        placement.put(f"/resource_providers/{root}/aggregates", [made["uuid"], other], version=1)
        for member_of in (made["uuid"], other, f"in:{other},{uuid.uuid4()}"):
            assert [each["uuid"] for each in placement.get("/resource_providers", member_of=member_of)[
                "resource_providers"]] == [root]
            assert placement.candidates(resources="VCPU:1", member_of=member_of) == [{root: {"VCPU": 1}}]
        assert placement.candidates(resources="VCPU:1", member_of=str(uuid.uuid4())) == []
        assert placement.candidates(resources="VCPU:1", member_of=f"!{other}") == []
        placement.put(f"/resource_providers/{root}/aggregates", [made["uuid"]], version=1)
    finally:
        admin.post(f"/os-aggregates/{made['id']}/action", {"remove_host": {"host": suite.compute.host}})
        admin.delete(f"/os-aggregates/{made['id']}")


# --- external providers ------------------------------------------------------------------------
def test_bandwidth_below_a_compute_node(suite, placement, admin, flavor, image_id):
    """A Neutron agent reports bandwidth below the compute node; a port allocates it, beside the claims of servers."""
    root, name = placement.root(), "CUSTOM_TEST_PHYSNET"
    agent = placement.external(parent_provider_uuid=root)
    nic = placement.external(inventories={BANDWIDTH: 1000}, parent_provider_uuid=agent)
    placement.put(f"/traits/{name}", expect=201)
    placement.put(f"/resource_providers/{nic}/traits", {"resource_provider_generation": 1, "traits": [name]})
    tree = placement.get("/resource_providers", in_tree=nic)["resource_providers"]
    assert {each["uuid"]: each["parent_provider_uuid"] for each in tree} == {root: None, agent: root, nic: agent}
    candidates = placement.candidates(resources="VCPU:1", resources_PORT=f"{BANDWIDTH}:600", required_PORT=name)
    assert candidates == [{root: {"VCPU": 1}, nic: {BANDWIDTH: 600}}]
    port, other = consumer(), consumer()
    placement.allocate(port, {nic: {BANDWIDTH: 600}})
    assert placement.candidates(resources_PORT=f"{BANDWIDTH}:600") == []
    error = placement.allocate(other, {nic: {BANDWIDTH: 600}}, expect=409)["errors"][0]
    assert "600 requested of 1000, 600 used" in error["detail"]
    assert placement.get(f"/allocations/{other}") == {"allocations": {}}
    # the report of the host leaves the providers of others alone, and servers still boot
    suite.compute._nodes.report(full=True)
    server = admin.boot(flavor, image_id)
    admin.wait(server, "ACTIVE")
    assert list(placement.get(f"/allocations/{server}")["allocations"]) == [root]
    wait_for(lambda: bandwidth_in_use(suite.scheduler.fleet) == 600, reason="the scheduler knows the allocation")
    assert placement.error("DELETE", f"/resource_providers/{nic}")["code"] == "placement.resource_provider.inuse"
    assert placement.error("DELETE", f"/resource_providers/{agent}")["code"] == (
        "placement.resource_provider.cannot_delete_parent")
    placement.allocate(port, {}, generation=1)
    placement.delete(f"/allocations/{port}", expect=404)
    placement.delete(f"/resource_providers/{nic}")


def test_providers_are_created_renamed_and_moved(placement):
    first, second = placement.external("one"), placement.external("two")
    assert placement.error("POST", "/resource_providers", {"name": "one"})["code"] == "placement.duplicate_name"
    error = placement.error("PUT", f"/resource_providers/{second}", {"name": "one"})
    assert error["code"] == "placement.duplicate_name"
    placement.error("POST", "/resource_providers", {"name": "x", "uuid": first})
    placement.error("POST", "/resource_providers", {"name": "x", "parent_provider_uuid": consumer()}, status=400)
    placement.error("POST", "/resource_providers", {"name": ""}, status=400)
    response = placement.post("/resource_providers", {"name": "old"}, version=19, expect=None)
    assert (response.status_code, response.content) == (201, b"")
    assert placement.session.get(response.headers["Location"], timeout=60).json()["name"] == "old"
    placement.put(f"/resource_providers/{first}", {"name": "renamed"})
    placement.put(f"/resource_providers/{second}", {"name": "one", "parent_provider_uuid": first}, version=14)
    shown = placement.get(f"/resource_providers/{second}")
    assert (shown["name"], shown["root_provider_uuid"]) == ("one", first)
    error = placement.error("PUT", f"/resource_providers/{second}", {"name": "one", "parent_provider_uuid": None},
                            version=36, status=400)
    assert "re-parenting" in error["detail"]
    error = placement.error("PUT", f"/resource_providers/{first}", {"name": "renamed", "parent_provider_uuid": second},
                            status=400)
    assert "loop" in error["detail"]
    placement.put(f"/resource_providers/{first}", {"name": "renamed", "parent_provider_uuid": placement.root()})
    assert placement.get(f"/resource_providers/{second}")["root_provider_uuid"] == placement.root()
    placement.put(f"/resource_providers/{second}", {"name": "one", "parent_provider_uuid": None})
    assert placement.get(f"/resource_providers/{second}")["root_provider_uuid"] == second


def test_generations_refuse_lost_updates(placement):
    provider = placement.external(inventories={"VCPU": 4})
    path = f"/resource_providers/{provider}"
    for name, empty in (("inventories", {}), ("traits", []), ("aggregates", [])):
        error = placement.error("PUT", f"{path}/{name}", {"resource_provider_generation": 0, name: empty})
        assert error["code"] == "placement.concurrent_update"
    one = {"total": 2, "resource_provider_generation": 0}
    assert placement.error("PUT", f"{path}/inventories/VCPU", one)["code"] == "placement.concurrent_update"


def test_inventories(placement):
    provider = placement.external()
    path = f"/resource_providers/{provider}/inventories"
    response = placement.post(path, {"resource_class": "VCPU", "total": 4, "resource_provider_generation": 0},
                              expect=None)
    assert (response.status_code, response.json()["resource_provider_generation"]) == (201, 1)
    placement.error("POST", path, {"resource_class": "VCPU", "total": 4, "resource_provider_generation": 1})
    placement.error("PUT", f"{path}/DISK_GB", {"total": 4, "resource_provider_generation": 1}, status=400)
    placement.error("PUT", path, {"resource_provider_generation": 1, "inventories": {"CUSTOM_NO": {"total": 1}}},
                    status=400)
    error = placement.error("PUT", f"{path}/VCPU", {"total": "4", "resource_provider_generation": 1}, status=400)
    assert "$.total" in error["detail"]
    shown = placement.put(f"{path}/VCPU", {"total": 8, "reserved": 1, "allocation_ratio": 2.5, "step_size": 2,
                                           "resource_provider_generation": 1})
    assert shown == placement.get(f"{path}/VCPU") == {
        "total": 8, "reserved": 1, "min_unit": 1, "max_unit": 2147483647, "step_size": 2, "allocation_ratio": 2.5,
        "resource_provider_generation": 2}
    user = consumer()
    placement.allocate(user, {provider: {"VCPU": 16}})
    error = placement.allocate(consumer(), {provider: {"VCPU": 3}}, expect=409)["errors"][0]
    assert "VCPU: 3 requested" in error["detail"]
    for method, end, body in (("DELETE", "", None), ("DELETE", "/VCPU", None), (
            "PUT", "", {"resource_provider_generation": 3, "inventories": {"DISK_GB": {"total": 1}}})):
        assert placement.error(method, path + end, body)["code"] == "placement.inventory.inuse"
    placement.delete(f"/allocations/{user}")
    placement.delete(f"{path}/VCPU")
    placement.delete(f"{path}/VCPU", expect=404)
    placement.error("DELETE", path, version=4, status=405)
    placement.delete(path)


def test_consumer_generations(placement):
    provider, user = placement.external(inventories={"VCPU": 4}), consumer()
    assert "consumer generation conflict" in placement.allocate(user, {provider: {"VCPU": 1}}, 1, expect=409)[
        "errors"][0]["detail"]
    placement.allocate(user, {provider: {"VCPU": 1}})
    error = placement.allocate(user, {provider: {"VCPU": 2}}, expect=409)["errors"][0]
    assert (error["code"], "consumer generation conflict" in error["detail"]) == ("placement.concurrent_update", True)
    placement.allocate(user, {provider: {"VCPU": 4}}, 1)
    assert placement.get(f"/allocations/{user}")["consumer_generation"] == 2
    # a move of the whole allocation to another consumer, as POST /allocations allows
    other = consumer()
    fields = {"project_id": "p", "user_id": "u", "consumer_type": "PORT"}
    placement.post("/allocations", {
        user: {"allocations": {}, "consumer_generation": 2, **fields},
        other: {"allocations": {provider: {"resources": {"VCPU": 4}}}, "consumer_generation": None, **fields}},
        expect=204)
    assert placement.get(f"/allocations/{user}") == {"allocations": {}}
    assert placement.get(f"/resource_providers/{provider}/usages")["usages"] == {"VCPU": 4}
    placement.put(f"/allocations/{other}", {"allocations": [{
        "resource_provider": {"uuid": provider}, "resources": {"VCPU": 2}}]}, version=0, expect=204)
    assert placement.get(f"/allocations/{other}", version=12)["project_id"] == str(uuid.UUID(int=0))
    placement.allocate(consumer(), {consumer(): {"VCPU": 1}}, expect=400)
    placement.allocate(consumer(), {provider: {"CUSTOM_NO": 1}}, expect=400)


def test_concurrent_allocations_never_exceed_an_inventory(placement):
    root = placement.root()
    nic = placement.external(inventories={BANDWIDTH: 5}, parent_provider_uuid=root)
    same = consumer()
    body = {"allocations": {nic: {"resources": {BANDWIDTH: 1}}}, "project_id": "p", "user_id": "u",
            "consumer_generation": None, "consumer_type": "PORT"}

    def allocate(user):
        return placement.put(f"/allocations/{user}", body, expect=None).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(allocate, [same] * 4 + [consumer() for _ in range(8)]))
    assert statuses[:4].count(204) == 1
    assert statuses.count(204) == 5
    assert set(statuses) == {204, 409}
    assert placement.get(f"/resource_providers/{nic}/usages")["usages"] == {BANDWIDTH: 5}


def test_names(placement):
    placement.put("/traits/CUSTOM_TEST_A", expect=201)
    placement.put("/traits/CUSTOM_TEST_A", expect=204)
    placement.get("/traits/CUSTOM_TEST_A", expect=204)
    placement.get("/traits/HW_CPU_X86_AVX", expect=204)
    placement.error("PUT", "/traits/HW_NEW", status=400)
    placement.error("DELETE", "/traits/HW_CPU_X86_AVX", status=400)
    placement.error("GET", "/traits/CUSTOM_NO", status=404)
    assert placement.get("/traits", name="in:CUSTOM_TEST_A,HW_CPU_X86_AVX,CUSTOM_NO")["traits"] == [
        "CUSTOM_TEST_A", "HW_CPU_X86_AVX"]
    assert "CUSTOM_TEST_A" in placement.get("/traits", associated="false")["traits"]
    assert "COMPUTE_NODE" in placement.get("/traits", associated="true")["traits"]
    placement.error("GET", "/traits", associated="x", status=400)
    placement.delete("/traits/CUSTOM_TEST_A")
    placement.delete("/traits/CUSTOM_TEST_A", expect=404)
    placement.put("/resource_classes/CUSTOM_TEST", expect=201)
    placement.put("/resource_classes/CUSTOM_TEST", expect=204)
    placement.error("POST", "/resource_classes", {"name": "CUSTOM_TEST"})
    placement.put("/resource_classes/CUSTOM_TEST", {"name": "CUSTOM_TEST2"}, version=6)
    provider = placement.external(inventories={"CUSTOM_TEST2": 1})
    placement.error("DELETE", "/resource_classes/CUSTOM_TEST2")
    placement.delete(f"/resource_providers/{provider}/inventories/CUSTOM_TEST2")
    assert {"CUSTOM_TEST2", "VCPU"} <= {each["name"] for each in placement.get("/resource_classes")["resource_classes"]}
    placement.delete("/resource_classes/CUSTOM_TEST2")
    placement.error("GET", "/resource_classes/CUSTOM_TEST2", status=404)
    placement.error("DELETE", "/resource_classes/VCPU", status=400)


def test_candidates_per_version(placement):
    root = placement.root()
    nic = placement.external(inventories={BANDWIDTH: 100}, parent_provider_uuid=root)
    query = {"resources": f"VCPU:1,{BANDWIDTH}:1"}
    assert placement.get("/allocation_candidates", version=28, **query)["allocation_requests"] == []
    answer = placement.get("/allocation_candidates", version=33, **query)
    assert "mappings" not in answer["allocation_requests"][0]
    assert answer["provider_summaries"][nic]["parent_provider_uuid"] == root
    answer = placement.get("/allocation_candidates", **query)
    assert answer["allocation_requests"] == [{
        "allocations": {root: {"resources": {"VCPU": 1}}, nic: {"resources": {BANDWIDTH: 1}}},
        "mappings": {"": sorted([root, nic])}}]
    old = placement.get("/allocation_candidates", resources="VCPU:1", version=11)
    assert old["allocation_requests"][0]["allocations"] == [
        {"resource_provider": {"uuid": root}, "resources": {"VCPU": 1}}]
    assert list(old["provider_summaries"][root]) == ["resources"]
    assert list(old["provider_summaries"][root]["resources"]) == ["VCPU"]
    placement.error("GET", "/allocation_candidates", resources="CUSTOM_NO:1", status=400)


def test_costs_do_not_grow_with_the_number_of_providers(suite, placement):
    """The statements of candidates and lists are the same for 3 trees and for 30."""
    def statements(path, **query):
        suite.statements.take()
        response = placement.get(path, expect=None, **query)
        return len(suite.statements.of(response.headers["x-openstack-request-id"]))

    def costs(limit):
        return (statements("/allocation_candidates", resources="SRIOV_NET_VF:1", limit=limit),
                statements("/resource_providers", resources="SRIOV_NET_VF:1"))

    for _ in range(3):
        provider = placement.external(inventories={"SRIOV_NET_VF": 2})
    few = costs(100)
    for _ in range(27):
        placement.external(inventories={"SRIOV_NET_VF": 2})
    assert costs(100) == few
    assert few[0] <= 6
    assert few[1] <= 2
    assert len(placement.candidates(resources="SRIOV_NET_VF:1", limit=7)) == 7
    assert statements(f"/resource_providers/{provider}") <= 4
    assert statements(f"/allocations/{consumer()}") <= 2


# --- osc-placement -----------------------------------------------------------------------------
def test_commands_of_osc_placement(suite, placement):
    osc = Commands(suite.url, "1")
    assert osc.version == "1.29"  # negotiated
    osc = Commands(suite.url, "1.39")
    root, user = placement.root(), consumer()
    made = osc.run(resource_provider.CreateResourceProvider, "osc", "--parent-provider", root)
    nic = made["uuid"]
    assert made["root_provider_uuid"] == root
    assert {each["uuid"] for each in osc.run(resource_provider.ListResourceProvider, "--in-tree", root)} == {root, nic}
    osc.run(resource_provider.SetResourceProvider, nic, "--name", "osc2")
    assert osc.run(resource_provider.ShowResourceProvider, nic, "--allocations")["name"] == "osc2"
    osc.run(resource_class.SetResourceClass, "CUSTOM_TEST_OSC")
    osc.run(inventory.SetInventory, nic, "--resource", "CUSTOM_TEST_OSC=8", "--resource", "CUSTOM_TEST_OSC:reserved=2")
    osc.run(inventory.SetInventory, nic, "--amend", "--resource", "CUSTOM_TEST_OSC:step_size=2")
    osc.run(inventory.SetClassInventory, nic, "CUSTOM_TEST_OSC", "--total", "10")
    assert osc.run(inventory.ListInventory, nic)[0]["total"] == 10
    osc.run(trait.CreateTrait, "CUSTOM_TEST_OSC")
    osc.run(trait.SetResourceProviderTrait, nic, "--trait", "CUSTOM_TEST_OSC")
    assert osc.run(trait.ListResourceProviderTrait, nic) == [{"name": "CUSTOM_TEST_OSC"}]
    aggregate_uuid, generation = consumer(), osc.run(resource_provider.ShowResourceProvider, nic)["generation"]
    osc.run(aggregate.SetAggregate, nic, "--aggregate", aggregate_uuid, "--generation", generation)
    assert osc.run(aggregate.ListAggregate, nic) == [{"uuid": aggregate_uuid}]
    assert [each["uuid"] for each in osc.run(
        resource_provider.ListResourceProvider, "--member-of", aggregate_uuid, "--required", "CUSTOM_TEST_OSC",
        "--resource", "CUSTOM_TEST_OSC=1")] == [nic]
    rows = osc.run(allocation_candidate.ListAllocationCandidate, "--group", "1", "--resource", "CUSTOM_TEST_OSC=3",
                   "--required", "CUSTOM_TEST_OSC", "--group", "2", "--resource", "VCPU=1", "--group-policy", "none")
    assert {row["resource provider"] for row in rows} == {root, nic}
    for amount in (3, 4):
        osc.run(allocation.SetAllocation, user, "--allocation", f"rp={nic},CUSTOM_TEST_OSC={amount}", "--allocation",
                f"rp={root},VCPU=1", "--project-id", "p", "--user-id", "u", "--consumer-type", "PORT")
    assert {row["resource_provider"]: row["resources"] for row in osc.run(allocation.ShowAllocation, user)} == {
        nic: {"CUSTOM_TEST_OSC": 4}, root: {"VCPU": 1}}
    assert osc.run(inventory.ShowInventory, nic, "CUSTOM_TEST_OSC")["used"] == 4
    assert {row["resource_class"]: row["usage"] for row in osc.run(usage.ShowUsage, root)}["VCPU"] == 1
    osc.run(allocation.UnsetAllocation, user, "--provider", root)
    osc.run(allocation.DeleteAllocation, user)
    osc.run(inventory.DeleteInventory, nic)
    osc.run(resource_class.DeleteResourceClass, "CUSTOM_TEST_OSC")
    osc.run(resource_provider.DeleteResourceProvider, nic)
