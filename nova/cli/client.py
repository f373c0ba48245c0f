"""The API as commands see it: requests with the token and microversion of this user, answers as documents."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova.cli import errors, login
from nova.cli.errors import CommandError, LoginFailed, UsageError

# The newest microversion that this client knows the answers of.
NEWEST = 104
_ROOT = re.compile(r"(?P<root>.*/v2(\.1)?)(/.*)?")
# What a catalogue's URL of a service may lack.
_VERSIONS = {"image": ("/v2", r"/v2(\.\d+)?$"), "network": ("/v2.0", r"/v2\.0$"), "block-storage": ("", ""),
             "identity": ("/v3", r"/v3$")}


class Nova:
    """One user of one cloud. Every method raises Refused for an error of the service, LoginFailed without one."""

    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._options = options
        self._memory = login.Memory(login.key_of(options, environ), environ, login.remembers(options, environ))
        self._login: login.Login | None = None
        self._known = self._memory.load()
        self._remembered = self._known is not None
        self._http: Any = None
        self._wanted = wanted_version(options.os_compute_api_version or environ.get("OS_COMPUTE_API_VERSION"))
        self._version: int | None = None

    # --- the API ------------------------------------------------------------------------------------
    @property
    def version(self) -> int:
        """The minor microversion of requests: the newest that both sides know, or the one that was asked for."""
        if self._version is None:
            self._version = min(NEWEST, self.newest) if self._wanted is None else self._wanted
        return self._version

    @property
    def newest(self) -> int:
        """The newest that the server knows."""
        known = self._logged_in()
        if known.newest is None:
            document = self.versions()["version"]
            _major, _, minor = (document.get("version") or "2.1").partition(".")
            known.newest = int(minor)
            self._memory.save(known)
        return known.newest

    @property
    def project_id(self) -> str | None:
        """Of the token; None where there is none (noauth)."""
        return self._logged_in().project_id

    @property
    def user_id(self) -> str | None:
        """As project_id."""
        return self._logged_in().user_id

    def call(self, method: str, path: str, body: Any = None, *, version: int | None = None, **query: Any) -> Any:
        """The answer's document, or None; entries of ``query`` that are None are left out."""
        minor = self.version if version is None else version
        response = self._send("compute", method, path, body, query, {"OpenStack-API-Version": f"compute 2.{minor}"})
        if response.status_code == 406 and self._remembered and self._wanted is None:
            self._renew()  # another release of the server than was remembered
            return self.call(method, path, body, version=version, **query)
        return self._document(response)

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, **query)

    def post(self, path: str, body: Any, **options: Any) -> Any:
        return self.call("POST", path, body, **options)

    def put(self, path: str, body: Any, **options: Any) -> Any:
        return self.call("PUT", path, body, **options)

    def delete(self, path: str, **query: Any) -> Any:
        return self.call("DELETE", path, **query)

    def action(self, server: Mapping[str, Any], name: str, value: Any = None, **options: Any) -> Any:
        return self.call("POST", f"/servers/{server['id']}/action", {name: value}, **options)

    def pages(self, path: str, key: str, *, limit: int | None = None, mark: str = "id", **query: Any) -> Iterator[Any]:
        """All that a list has, page by page; ``limit`` of them at most, unless it is None or negative."""
        left = None if limit is None or limit < 0 else limit
        while left != 0:
            answer = self.get(path, limit=left, **query)
            for found in answer[key]:
                yield found
                left = left if left is None else left - 1
            if (f"{key}_links" not in answer and "links" not in answer) or not answer[key]:
                return
            query["marker"] = answer[key][-1][mark]

    def versions(self, every: bool = False) -> Any:
        """The version document of the API, or of the service's root; neither needs a token."""
        root = self._root()
        where = re.sub(r"/v2(\.1)?$", "/", root) if every else f"{root}/"
        return self._document(self._exchange("GET", where, None, {}, {}))

    def overview(self) -> Any:
        """What the service's status page shows; where that is not served, Refused with 404."""
        return self._document(self._authorized(
            "GET", lambda: re.sub(r"/v2(\.1)?$", "", self._root()) + "/status.json", None, {}, {}))

    # --- its neighbours -----------------------------------------------------------------------------
    def has(self, service: str) -> bool:
        """Whether the catalogue has such a service."""
        return self._endpoint(service) is not None

    def ask(self, service: str, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """As call(), of another service. Raises CommandError if the cloud has none."""
        return self._document(self._send(service, method, path, body, query, {}))

    # --- inside -------------------------------------------------------------------------------------
    def _send(self, service: str, method: str, path: str, body: Any, query: Mapping[str, Any],
              headers: Mapping[str, str]) -> Any:
        return self._authorized(method, lambda: self._url(service) + path, body, query, headers)

    def _authorized(self, method: str, url: Callable[[], str], body: Any, query: Mapping[str, Any],
                    headers: Mapping[str, str]) -> Any:
        """The answer to a request with the user's token. ``url``: another one after another login."""
        known = self._logged_in()
        token = {"X-Auth-Token": known.token} if known.token else {}
        response = self._exchange(method, url(), body, query, {**headers, **token})
        if response.status_code == 401 and self._remembered:
            self._renew()  # the remembered token was revoked
            return self._authorized(method, url, body, query, headers)
        return response

    def _renew(self) -> None:
        self._memory.forget()
        self._known, self._remembered, self._version = None, False, None

    def _exchange(self, method: str, url: str, body: Any, query: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        import keystoneauth1.exceptions
        import keystoneauth1.session

        known = self._logged_in()
        if self._http is None:
            cert: Any = tuple(known.cert) if isinstance(known.cert, list) else known.cert
            self._http = keystoneauth1.session.Session(
                verify=known.verify, cert=cert, timeout=self._options.timeout, user_agent="nova-cli")
        values = {name: value for name, value in query.items() if value is not None}
        try:
            return self._http.request(url, method, json=body, params=values, headers=dict(headers), authenticated=False,
                                      raise_exc=False, redirect=5)
        except keystoneauth1.exceptions.ClientException as error:
            raise LoginFailed(f"{error}\nNo answer from {url}: check OS_AUTH_URL, the endpoint "
                              "(--os-endpoint-override) and the network.") from error

    @staticmethod
    def _document(response: Any) -> Any:
        if response.status_code >= 400:
            raise errors.refused(response)
        if not response.content or "json" not in response.headers.get("Content-Type", ""):
            return None
        return response.json()

    def _logged_in(self) -> login.Known:
        if self._known is None:
            self._known = self._configured().known()
            self._known.endpoints["compute"] = self._configured().endpoint("compute") or ""
            self._memory.save(self._known)
        return self._known

    def _configured(self) -> login.Login:
        if self._login is None:
            self._login = login.Login(self._options)
        return self._login

    def _endpoint(self, service: str) -> str | None:
        known = self._logged_in()
        if service not in known.endpoints:
            known.endpoints[service] = self._configured().endpoint(service) or ""
            self._memory.save(known)
        return known.endpoints[service] or None

    def _url(self, service: str) -> str:
        url = (self._options.os_endpoint_override if service == "compute" else None) or self._endpoint(service)
        if not url:
            raise CommandError(f"This cloud has no {service} service: its catalogue does not name one.")
        url = str(url).rstrip("/")
        if service == "compute":
            return url if _ROOT.fullmatch(url) else f"{url}/v2.1"
        suffix, pattern = _VERSIONS[service]
        return url if re.search(pattern, url) else url + suffix

    def _root(self) -> str:
        found = _ROOT.fullmatch(self._url("compute"))
        assert found is not None
        return found["root"]


def wanted_version(text: str | None) -> int | None:
    """The minor of "2.60"; None for "2", "2.latest" and "latest". Raises UsageError for anything else."""
    if text is None or text in ("", "2", "latest", "2.latest"):
        return None
    found = re.fullmatch(r"2\.(0|[1-9]\d*)", text)
    if found is None:
        raise UsageError(f"{text} is not a version of the API: 2.1 to 2.{NEWEST}, or 2.latest "
                         "(--os-compute-api-version, OS_COMPUTE_API_VERSION)")
    return max(1, int(found[1]))
