"""What operations cost on the bus and in the database, counted."""

import time

import pytest

from nova import bus, context
from nova.db import audit
from nova.objects.base import new_uuid
from nova.objects.network import Network


def measured(suite, act, done):
    """Messages and statements from ``act`` until ``done`` and all that follows from it."""
    time.sleep(0.6)  # what earlier work still publishes
    with quiet(suite):
        bus.SENT.take()
        suite.statements.take()
        result = act()
        end = time.monotonic() + 10
        while suite.conductor.core.db.read(audit.unfinished):
            assert time.monotonic() < end
            time.sleep(0.05)
        done(result)
        time.sleep(0.6)
        messages = bus.SENT.take()
        statements = [statement for statement in suite.statements.take() if not statement.startswith("BEGIN")]
    looked = [statement for statement in statements if "actions.outcome IS NULL" in statement
              and statement.startswith("SELECT actions.action")]
    return result, sum(messages.values()), len(statements) - len(looked), messages


class quiet:
    """Without heartbeats and recovery, which cost the same whether anything happens or not."""

    def __init__(self, suite):
        self.threads = [*suite.conductor.periodic, *suite.compute.periodic, suite.scheduler._beats]

    def __enter__(self):
        for thread in self.threads:
            thread.pause()

    def __exit__(self, *_error):
        for thread in self.threads:
            thread.go_on()


@pytest.fixture
def network(networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="costs", cidr="10.30.0.0/24", gateway="", bridge=""))
    yield made.uuid
    networks.delete(context.admin(), made.uuid)


def test_a_boot_a_stop_and_a_delete_stay_within_their_budgets(suite, admin, flavor, image_id, network):
    def boot():
        return admin.boot(flavor, image_id, networks=[{"uuid": network}])

    admin.wait(boot(), "ACTIVE")  # makes the rows that a project gets once
    uuid, messages, statements, kinds = measured(suite, boot, lambda _uuid: None)
    assert admin.server(uuid)["status"] == "ACTIVE"
    assert messages <= 10, kinds
    assert statements <= 30

    _none, messages, statements, kinds = measured(
        suite, lambda: admin.action(uuid, "os-stop"), lambda _none: None)
    # The API looks the server up for its policy; the action itself is five messages.
    assert messages - kinds.get("servers.get", 0) <= 5, kinds
    assert statements <= 15

    _none, messages, statements, kinds = measured(
        suite, lambda: admin.delete(f"/servers/{uuid}"), lambda _none: None)
    assert messages - kinds.get("servers.get", 0) <= 6, kinds
    assert statements <= 25
    for server in admin.get("/servers")["servers"]:
        admin.delete(f"/servers/{server['id']}")
        admin.wait_gone(server["id"])


def test_no_count_grows_with_the_number_of_servers(suite, admin, flavor, image_id):
    def boot():
        return admin.boot(flavor, image_id)

    def listing():
        return admin.get("/servers/detail", limit=50)

    admin.wait(boot(), "ACTIVE")
    _uuid, few_messages, few_statements, _kinds = measured(suite, boot, lambda _uuid: None)
    listing()  # what is looked up once in a while is looked up now
    _page, few_list_messages, few_list, _kinds = measured(suite, listing, lambda _page: None)
    for _number in range(30):
        boot()
    _uuid, many_messages, many_statements, _kinds = measured(suite, boot, lambda _uuid: None)
    listing()
    _page, many_list_messages, many_list, _kinds = measured(suite, listing, lambda _page: None)
    assert (many_messages, many_statements) == (few_messages, few_statements)
    assert (many_list_messages, many_list) == (few_list_messages, few_list)
    servers = admin.get("/servers")["servers"]
    for server in servers:
        admin.delete(f"/servers/{server['id']}")
    for server in servers:
        admin.wait_gone(server["id"])
