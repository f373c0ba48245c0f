"""openstacksdk's cloud layer with embedded networks and without Neutron."""

import openstack
import pytest

from nova import context
from nova.db.networks import floating_ips
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from tests.functional.client import Client

# openstacksdk emits deprecation warnings for most of these calls.
pytestmark = pytest.mark.filterwarnings("ignore:::openstack")

POOL = "203.0.113.0/30"


@pytest.fixture
def network(networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="stock", cidr="10.61.0.0/24", gateway="", bridge=""))
    yield made
    networks.delete(context.admin(), made.uuid)


@pytest.fixture
def pool(suite):
    db = suite.conductor.core.db
    db.write(lambda connection: floating_ips.create(connection, "public", POOL))
    yield "public"
    db.write(lambda connection: floating_ips.delete(connection, POOL))


@pytest.fixture
def cloud(suite):
    """Return the connection that a clouds.yaml without a network service configures."""
    with openstack.connect(
            load_yaml_config=False, load_envvars=False, auth_type="none", auth={"endpoint": f"{suite.url}/v2.1"},
            compute_endpoint_override=f"{suite.url}/v2.1", compute_api_version="2.1", has_network=False,
            has_image=False) as made:
        made.session.additional_headers.update({"X-Auth-Token": "u:p", "X-Roles": "member,reader"})
        yield made


def test_openstacksdk_creates_a_server_with_a_floating_ip(suite, cloud, network, pool, flavor, image_id, admin):
    server = cloud.create_server(
        "stock", image={"id": image_id}, flavor={"id": flavor}, network=[{"id": network.uuid}],
        wait=True, timeout=60, auto_ip=True)
    try:
        assert server.status == "ACTIVE"
        found = {each["addr"] for each in admin.server(server.id)["addresses"]["stock"]}
        assert {"203.0.113.1"} < found
    finally:
        assert cloud.delete_server(server.id, wait=True, timeout=60, delete_ips=True)
    assert Client(suite.url, version="2.35").get("/os-floating-ips")["floating_ips"] == []
