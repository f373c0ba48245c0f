"""Pages of servers that the conductor truncated to bound the time of a search."""

import pytest

from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_request import ServerPage

SERVER = Instance(uuid="found", project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
                  flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1))


@pytest.mark.parametrize("found", [[], [SERVER]])
@pytest.mark.parametrize(("marker", "linked"), [("searched-up-to-here", True), (None, False)])
def test_truncated_page_of_servers_has_a_next_link_even_if_empty(api, found, marker, linked):
    page = ServerPage(servers=found, marker=marker)
    api.behind.servers = type("Servers", (), {"page": lambda self, ctx, query: page})()
    answer = api.get("/v2.1/servers?name=rare&limit=5")
    assert [server["id"] for server in answer.json["servers"]] == [server.uuid for server in found]
    links = answer.json.get("servers_links", [])
    assert [link["rel"] for link in links] == ["next"] * linked
    assert all(link["href"].endswith("/servers?limit=5&marker=searched-up-to-here&name=rare") for link in links)
