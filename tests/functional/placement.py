"""A client of the Placement API, and the commands of osc-placement in this process."""

import types
import uuid

from keystoneauth1 import session, token_endpoint
from osc_placement.http import SessionClient

from tests.functional.client import Client


class Placement:
    """A client of the Placement API; ``version``: the default minor version of requests."""

    def __init__(self, url, version=39, **identity):
        self.url, self.version = f"{url}/placement", version
        self.session = Client(url, **identity).session

    def call(self, method, path, body=None, version=None, expect=200, headers=None, **query):
        """Send a request, check the status, and return the body (the whole response if ``expect`` is None)."""
        response = self.session.request(
            method, self.url + path, json=body, params=query or None, timeout=60,
            headers={"OpenStack-API-Version": f"placement 1.{self.version if version is None else version}",
                     **(headers or {})})
        if expect is None:
            return response
        assert response.status_code == expect, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def get(self, path, **options):
        return self.call("GET", path, **options)

    def put(self, path, body=None, **options):
        return self.call("PUT", path, body, **options)

    def post(self, path, body=None, **options):
        return self.call("POST", path, body, **options)

    def delete(self, path, expect=204, **options):
        return self.call("DELETE", path, expect=expect, **options)

    def error(self, method, path, body=None, status=409, **options):
        """Send a request that must fail with ``status``; return its error."""
        (error,) = self.call(method, path, body, expect=status, **options)["errors"]
        assert error["status"] == status
        return error

    def root(self):
        """Return the provider of the only compute node."""
        (root,) = self.get("/resource_providers", required="COMPUTE_NODE")["resource_providers"]
        return root["uuid"]

    def external(self, name=None, inventories=None, **values):
        """Create an external provider with these inventories (total by resource class)."""
        made = self.post("/resource_providers", {"name": name or f"rp-{uuid.uuid4().hex[:8]}", **values})["uuid"]
        if inventories:
            self.put(f"/resource_providers/{made}/inventories", {"resource_provider_generation": 0, "inventories": {
                kind: {"total": total} for kind, total in inventories.items()}})
        return made

    def generation(self, provider):
        return self.get(f"/resource_providers/{provider}")["generation"]

    def allocate(self, consumer, allocations, generation=None, expect=204, **values):
        return self.put(f"/allocations/{consumer}", {
            "allocations": {provider: {"resources": amounts} for provider, amounts in allocations.items()},
            "project_id": "p", "user_id": "u", "consumer_generation": generation, "consumer_type": "PORT", **values},
            expect=expect)

    def candidates(self, **query):
        """Return the candidates as {provider: amounts}."""
        return [{provider: given["resources"] for provider, given in each["allocations"].items()}
                for each in self.get("/allocation_candidates", **query)["allocation_requests"]]


class Commands:
    """The commands of osc-placement, as the openstack client runs them."""

    def __init__(self, url, version):
        http = SessionClient(session.Session(auth=token_endpoint.Token(f"{url}/placement", "admin:p")),
                             {"service_type": "placement"}, api_version=version)
        self._app = types.SimpleNamespace(client_manager=types.SimpleNamespace(
            placement=http, session=http.session))
        self.version = http.api_version

    def run(self, kind, *arguments):
        """Run a command; return the rows of a list, or the fields of a resource."""
        command = kind(self._app, None)
        result = command.take_action(command.get_parser("openstack").parse_args([str(each) for each in arguments]))
        if result is None:
            return None
        columns, values = result
        values = list(values)
        if values and isinstance(values[0], tuple | list):
            return [dict(zip(columns, row, strict=True)) for row in values]
        return dict(zip(columns, values, strict=True)) if values else []
