"""The status page for operators, and its JSON data."""

import pytest
import requests

from nova.conf import CONF
from tests.functional.client import wait_for

NONE = {"nodes": [], "operations": [], "failures": []}


@pytest.fixture(autouse=True)
def on():
    CONF.set_override("status_page", True, group="api")
    yield
    CONF.clear_override("status_page", group="api")


def ask(client, path="/status.json"):
    return client.session.get(f"{client.url}{path}", timeout=10)


def look(client):
    answer = ask(client)
    assert answer.status_code == 200, answer.text
    return {**NONE, **answer.json()}


def test_status_page_needs_no_token_and_allows_own_scripts_only(suite):
    page = requests.get(f"{suite.url}/status", timeout=10)
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'; script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    for name, media in (("status.js", "text/javascript"), ("status.css", "text/css")):
        assert name in page.text
        answer = requests.get(f"{suite.url}/{name}", timeout=10)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, media)


def test_operation_on_a_host_is_listed_until_it_ends(suite, admin, flavor, image_id, hold):
    uuid = admin.boot(flavor, image_id, name="<b>shown</b>")
    admin.wait(uuid, "ACTIVE")
    held = hold("power.off")
    admin.action(uuid, "os-stop")
    held.wait_until_begun()
    request = admin.request_id
    shown = wait_for(lambda: [each for each in look(admin)["operations"] if each["request_id"] == request],
                     reason="the operation is shown")[0]
    assert (shown["operation"], shown["state"], shown["step"]) == ("stop", "host", "power_off")
    assert (shown["server_name"], shown["owner"]) == ("<b>shown</b>", f"compute@{suite.compute.host}")
    held.let_go()
    admin.wait(uuid, "SHUTOFF")
    wait_for(lambda: request not in [each["request_id"] for each in look(admin)["operations"]])
    node = next(each for each in look(admin)["nodes"] if each["host"] == suite.compute.host)
    assert (node["up"], node["disabled"], node["servers"]) == (True, False, 1)
    assert node["capacity"]["VCPU"]["used"] == 1
    boots = look(admin)["boots"]
    assert (len(boots), sum(boots[-2:]) >= 1, min(boots)) == (30, True, 0)


def test_failed_operation_is_listed_with_its_fault_message(admin, image_id):
    uuid = admin.boot(admin.flavor(vcpus=4096), image_id, name="too large")
    admin.wait(uuid, "ERROR")
    request = admin.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"][0]["request_id"]
    failed = wait_for(lambda: [each for each in look(admin)["failures"] if each["request_id"] == request])[0]
    assert (failed["server_name"], failed["operation"]) == ("too large", "create")
    assert "No valid host" in failed["message"]


def test_status_data_requires_the_admin_role(member):
    answer = ask(member)
    assert answer.status_code == 403
    assert "nova:status" in answer.json()["forbidden"]["message"]


def test_disabled_status_page_is_not_served(admin):
    CONF.clear_override("status_page", group="api")
    assert ask(admin).status_code == 404
    assert ask(admin, "/status").status_code == 300  # the response to any path outside of the API


def test_status_data_is_read_only(admin):
    assert admin.session.post(f"{admin.url}/status.json", json={}, timeout=10).status_code == 404
