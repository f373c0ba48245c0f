"""The metadata service as a WSGI application.

A request comes either from the namespace of a network (the server sets ``nova.network_id``; packet filters guarantee
the source address), or from a proxy that signs the instance id."""

import hashlib
import hmac
import http
import logging
from collections.abc import Callable, Iterable
from typing import Any

from nova import exception
from nova.api.guest_metadata.instances import Instances
from nova.api.healthcheck import PATH as HEALTHCHECK
from nova.api.healthcheck import Healthcheck
from nova.metadata import tree
from nova.metadata.settings import MetadataSettings
from nova.objects.servers.guest import PASSWORD_MAX, password_items, password_of
from nova.objects.servers.instance import Instance

LOG = logging.getLogger(__name__)

NETWORK = "nova.network_id"


class HTTPError(Exception):
    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message or http.HTTPStatus(status).phrase


class Application:
    def __init__(self, instances: Instances, settings: MetadataSettings, shared_secret: str = "") -> None:
        self._instances, self._settings, self._secret = instances, settings, shared_secret
        self._healthcheck = Healthcheck(instances.check_conductor)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        extra = []
        try:
            if environ["REQUEST_METHOD"] == "OPTIONS":
                status, document = 200, tree.Document(b"")
                extra.append(("Allow", "GET, HEAD, POST, OPTIONS"))
            elif environ.get("PATH_INFO") == HEALTHCHECK and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                status, media_type, text = self._healthcheck.answer(environ)
                document = tree.Document(text, media_type)
            else:
                status, document = 200, self._answer(environ)
        except HTTPError as error:
            status, document = error.status, tree.Document(error.message.encode())
        except exception.NotFound:
            status, document = 404, tree.Document(b"Not Found")
        except exception.ServiceUnavailable as error:
            LOG.warning("Cannot read a guest's metadata from a conductor, the guest's request fails (503): %s", error)
            status, document = 503, tree.Document(b"Service Unavailable")
        except Exception:
            LOG.exception("Unexpected error in the metadata request %s", environ.get("PATH_INFO"))
            status, document = 500, tree.Document(b"Internal Server Error")
        body = document.body
        start_response(f"{status} {http.HTTPStatus(status).phrase}",
                       [("Content-Type", document.content_type), ("Content-Length", str(len(body))), *extra])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _answer(self, environ: dict[str, Any]) -> tree.Document:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        if method not in ("GET", "HEAD", "POST"):
            raise HTTPError(405)
        if not tree.segments(path):
            return tree.Document(tree.ROOT.encode())
        instance = self._instance(environ)
        if method == "POST":
            return self._post(environ, path, instance)
        if (entry := tree.Tree(instance, self._settings).lookup(path)) is None:
            raise HTTPError(404)
        return entry

    def _post(self, environ: dict[str, Any], path: str, instance: Instance) -> tree.Document:
        if not tree.is_password(path):
            raise HTTPError(404 if tree.Tree(instance, self._settings).lookup(path) is None else 405)
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            raise HTTPError(400, "Content-Length is not a number.") from None
        if not 0 <= length <= PASSWORD_MAX:  # read() with a negative length would read without a limit
            raise HTTPError(400, f"The password is longer than {PASSWORD_MAX} bytes.")
        try:
            password = environ["wsgi.input"].read(length).decode()
        except UnicodeDecodeError:
            raise HTTPError(400, "The password is not UTF-8 text.") from None
        if "\0" in password:
            raise HTTPError(400, "The password contains a NUL character.")
        if password_of(instance.system_metadata):
            raise HTTPError(409, "The password is set already.")
        try:
            self._instances.set_password(instance, password_items(password))
        except exception.Conflict as error:
            raise HTTPError(409, str(error)) from error
        return tree.Document(b"")

    def _instance(self, environ: dict[str, Any]) -> Instance:
        network_id = environ.get(NETWORK)
        if network_id:
            return self._instances.by_address(network_id, environ["REMOTE_ADDR"])
        if not self._secret:
            raise HTTPError(403, "Requests of proxies are disabled: [metadata]metadata_proxy_shared_secret is not set.")
        uuid = self._header(environ, "X-Instance-ID")
        project = self._header(environ, "X-Tenant-ID")
        signature = self._header(environ, "X-Instance-ID-Signature")
        self._header(environ, "X-Forwarded-For")
        expected = hmac.new(self._secret.encode(), uuid.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            LOG.warning("Refused a metadata request: the proxy's signature for instance %r is wrong", uuid)
            raise HTTPError(403, "Invalid proxy request signature.")
        instance = self._instances.by_uuid(uuid)
        if instance.project_id != project:
            LOG.warning("Refused a metadata request: instance %s does not belong to project %r, which the proxy named",
                        uuid, project)
            raise HTTPError(404)
        return instance

    def _header(self, environ: dict[str, Any], name: str) -> str:
        value = environ.get("HTTP_" + name.upper().replace("-", "_"))
        if not value or "," in value:
            raise HTTPError(400, f"{name} request header is missing or not a single value.")
        return str(value)
