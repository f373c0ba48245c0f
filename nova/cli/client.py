"""A client of the Compute API: sends requests with the token and microversion of the user, returns JSON documents."""

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova.cli import errors, login
from nova.cli.errors import CommandError, LoginFailed, Refused, UsageError

# The newest microversion that this client supports.
NEWEST = 104
# The newest minor microversions with the APIs of embedded networks, and with the server actions for these networks.
LEGACY, LEGACY_ACTIONS = 35, 43
_ROOT = re.compile(r"(?P<root>.*/v2(\.1)?)(/.*)?")
# The version suffix to append if the URL of a service in the catalog lacks it.
_VERSIONS = {"image": ("/v2", r"/v2(\.\d+)?$"), "network": ("/v2.0", r"/v2\.0$"), "block-storage": ("", ""),
             "identity": ("/v3", r"/v3$")}


class Nova:
    """A client of a cloud for a user. Methods raise Refused for an error response, LoginFailed for no response."""

    def __init__(self, options: argparse.Namespace) -> None:
        environ = os.environ
        self._options = options
        self._cache = login.SessionCache(login.key_of(options, environ), environ,
                                         login.caching_enabled(options, environ))
        self._login: login.Login | None = None
        self._session = self._cache.load()
        self._from_cache = self._session is not None
        self._http: Any = None
        self._selected = wanted_version(options.os_compute_api_version or environ.get("OS_COMPUTE_API_VERSION"))
        self._version: int | None = None

    @property
    def version(self) -> int:
        """Return the minor microversion of requests: the selected one, or the newest that client and server support."""
        if self._version is None:
            self._version = min(NEWEST, self.newest) if self._selected is None else self._selected
        return self._version

    @property
    def newest(self) -> int:
        """Return the newest minor microversion that the server supports."""
        session = self._logged_in()
        if session.newest is None:
            document = self.versions()["version"]
            _major, _, minor = (document.get("version") or "2.1").partition(".")
            session.newest = int(minor)
            self._cache.save(session)
        return session.newest

    @property
    def project_id(self) -> str | None:
        """Return the project of the token, or None if there is no token (noauth)."""
        return self._logged_in().project_id

    @property
    def user_id(self) -> str | None:
        """Return the user of the token, or None if there is no token (noauth)."""
        return self._logged_in().user_id

    def call(self, method: str, path: str, body: Any = None, *, version: int | None = None, **query: Any) -> Any:
        """Send a request to the Compute API, without parameters of ``query`` that are None. Return its JSON reply."""
        minor = self.version if version is None else version
        response = self._send("compute", method, path, body, query, {"OpenStack-API-Version": f"compute 2.{minor}"})
        if response.status_code == 406 and self._from_cache and self._selected is None:
            self._renew()  # the server was upgraded or downgraded since the login was cached
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

    def legacy(self, method: str, path: str, body: Any = None, otherwise: str = "") -> Any:
        """Send a request of nova-network, which upstream removed and the option [api]legacy enables. Raises
        CommandError with the hint ``otherwise`` if the API does not serve the request."""
        try:
            return self.call(method, path, body, version=LEGACY)
        except Refused as error:
            if error.status != 410:
                raise
            raise CommandError(otherwise or "This API does not serve the request: it requires [api]legacy.") from error

    def pages(self, path: str, key: str, *, limit: int | None = None, mark: str = "id", **query: Any) -> Iterator[Any]:
        """Yield the items of a list, page by page; at most ``limit`` items unless it is None or negative."""
        left = None if limit is None or limit < 0 else limit
        while left != 0:
            answer = self.get(path, limit=left, **query)
            for item in answer[key]:
                yield item
                left = left if left is None else left - 1
            if (f"{key}_links" not in answer and "links" not in answer) or not answer[key]:
                return
            query["marker"] = answer[key][-1][mark]

    def versions(self, every: bool = False) -> Any:
        """Return the version document of the API; ``every``: the list of all API versions. No token is needed."""
        root = self._root()
        where = re.sub(r"/v2(\.1)?$", "/", root) if every else f"{root}/"
        return self._document(self._exchange("GET", where, None, {}, {}))

    def overview(self) -> Any:
        """Return the document of the status page. Raises Refused with 404 if the page is disabled."""
        return self._document(self._authorized(
            "GET", lambda: re.sub(r"/v2(\.1)?$", "", self._root()) + "/status.json", None, {}, {}))

    def has(self, service: str) -> bool:
        """Return True if the catalog has a service of this type."""
        return self._endpoint(service) is not None

    def ask(self, service: str, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request to another service, as call() does. Raises CommandError if the catalog lacks the service."""
        return self._document(self._send(service, method, path, body, query, {}))

    def _send(self, service: str, method: str, path: str, body: Any, query: Mapping[str, Any],
              headers: Mapping[str, str]) -> Any:
        return self._authorized(method, lambda: self._url(service) + path, body, query, headers)

    def _authorized(self, method: str, url: Callable[[], str], body: Any, query: Mapping[str, Any],
                    headers: Mapping[str, str]) -> Any:
        """Send a request with the token; repeat it after a new login if a cached token is refused. ``url`` is called
        again after the login, since the catalog may have changed."""
        session = self._logged_in()
        token = {"X-Auth-Token": session.token} if session.token else {}
        response = self._exchange(method, url(), body, query, {**headers, **token})
        if response.status_code == 401 and self._from_cache:
            self._renew()  # the cached token was revoked
            return self._authorized(method, url, body, query, headers)
        return response

    def _renew(self) -> None:
        self._cache.remove()
        self._session, self._from_cache, self._version = None, False, None

    def _exchange(self, method: str, url: str, body: Any, query: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        import keystoneauth1.exceptions
        import keystoneauth1.session

        session = self._logged_in()
        if self._http is None:
            cert: Any = tuple(session.cert) if isinstance(session.cert, list) else session.cert
            self._http = keystoneauth1.session.Session(
                verify=session.verify, cert=cert, timeout=self._options.timeout, user_agent="nova-cli")
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

    def _logged_in(self) -> login.Session:
        if self._session is None:
            self._session = self._configured().authenticate()
            self._session.endpoints["compute"] = self._configured().endpoint("compute") or ""
            self._cache.save(self._session)
        return self._session

    def _configured(self) -> login.Login:
        if self._login is None:
            self._login = login.Login(self._options)
        return self._login

    def _endpoint(self, service: str) -> str | None:
        session = self._logged_in()
        if service not in session.endpoints:
            session.endpoints[service] = self._configured().endpoint(service) or ""
            self._cache.save(session)
        return session.endpoints[service] or None

    def _url(self, service: str) -> str:
        url = (self._options.os_endpoint_override if service == "compute" else None) or self._endpoint(service)
        if not url:
            raise CommandError(f"This cloud has no {service} service: the service catalog does not list it.")
        url = str(url).rstrip("/")
        if service == "compute":
            return url if _ROOT.fullmatch(url) else f"{url}/v2.1"
        suffix, pattern = _VERSIONS[service]
        return url if re.search(pattern, url) else url + suffix

    def _root(self) -> str:
        match = _ROOT.fullmatch(self._url("compute"))
        assert match is not None
        return match["root"]


def wanted_version(text: str | None) -> int | None:
    """Return the minor number of "2.60"; None for "2", "2.latest" and "latest". Raises UsageError for anything else."""
    if text is None or text in ("", "2", "latest", "2.latest"):
        return None
    match = re.fullmatch(r"2\.(0|[1-9]\d*)", text)
    if match is None:
        raise UsageError(f"{text} is not a version of the API: 2.1 to 2.{NEWEST}, or 2.latest "
                         "(--os-compute-api-version, OS_COMPUTE_API_VERSION)")
    return max(1, int(match[1]))
