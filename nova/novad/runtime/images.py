"""The size and digest of images in a registry (OCI distribution API, without a login)."""

import http.client
import json
import logging
import os
import pathlib
import platform
import re
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from nova.common.plain_ip import on_loopback

LOG = logging.getLogger(__name__)

_MOST = 4 << 20  # Maximum number of bytes of a manifest or token.
_TIMEOUT = 10.0  # Timeout in seconds of a request.
_LOCAL_TIMEOUT = 2.0  # Timeout in seconds of a request to a registry on this machine.
_ACCEPT = ", ".join([
    "application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"])
_REFERENCE = re.compile(r"(?P<host>[^/]*[.:][^/]*|localhost)/(?P<path>[^@]+?)(?::(?P<tag>[\w][\w.-]*))?"
                        r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?", re.ASCII)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def is_on_loopback(reference: str) -> bool:
    """Return True if the registry of an image is on this machine. Such a registry is used without TLS."""
    host, slash, _rest = reference.partition("/")
    return bool(slash) and on_loopback(re.sub(r":\d+$", "", host))


def size(reference: str) -> int | None:
    """Return the size of the image's compressed layers in bytes, for the architecture of this machine. None if it is
    unknown (short name, mirrors, login, no response): then podman's own request reports the error."""
    try:
        parts = _REFERENCE.fullmatch(_located(reference))
        if parts is None:
            return None
        host, path = parts["host"], parts["path"]
        if host == "docker.io":
            host, path = "registry-1.docker.io", path if "/" in path else f"library/{path}"
        url = f"{'http' if is_on_loopback(reference) else 'https'}://{host}/v2/{path}/manifests"
        headers = {"Accept": _ACCEPT}
        manifest = _manifest(f"{url}/{parts['digest'] or parts['tag'] or 'latest'}", headers)
        if "manifests" in manifest:
            manifest = _manifest(f"{url}/{urllib.parse.quote(_here(manifest['manifests']), safe=':')}", headers)
        return sum(max(0, int(layer["size"])) for layer in manifest["layers"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
            http.client.HTTPException) as error:
        LOG.info("The size of image %s is unknown before it is pulled: %s", reference, error)
        return None


def local_digest(reference: str) -> str:
    """Return the digest that a registry on this machine has for a tag, or "" if it is unknown."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None or parts["digest"] or not is_on_loopback(reference):
        return ""
    request = urllib.request.Request(f"http://{parts['host']}/v2/{parts['path']}/manifests/{parts['tag']}",
                                     headers={"Accept": _ACCEPT}, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_LOCAL_TIMEOUT) as answer:  # noqa: S310
            return answer.headers.get("Docker-Content-Digest") or ""
    except (OSError, ValueError, http.client.HTTPException):
        return ""


def _located(reference: str) -> str:
    """Return the reference with the location from podman's registries.conf. Raises OSError, ValueError. podman itself
    resolves registries that have mirrors, are blocked or are used without TLS."""
    own, main = os.environ.get("CONTAINERS_REGISTRIES_CONF"), pathlib.Path("/etc/containers/registries.conf")
    files = [*([main] if main.exists() else []), *sorted(main.with_name("registries.conf.d").glob("*.conf"))]
    chosen: dict[str, Any] = {}
    length = -1
    for file in [pathlib.Path(own)] if own else files:  # in ascending order of precedence
        for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("registry", []):
            prefix = str(entry.get("prefix") or entry.get("location") or "")
            wild = prefix.startswith("*.") and reference.partition("/")[0].endswith(prefix[1:])
            if (wild or re.match(rf"{re.escape(prefix)}($|[/:@])", reference)) and len(prefix) > length:
                chosen, length = {**entry, **({"mirror": [prefix]} if wild else {})}, len(prefix)
    if chosen.get("mirror") or chosen.get("blocked") or chosen.get("insecure"):
        raise ValueError("registries.conf has mirrors or no plain location for it")
    return f"{chosen['location']}{reference[length:]}" if chosen.get("location") else reference


def _here(manifests: list[Any]) -> str:
    """Return the digest of this machine's manifest in an index. Raises ValueError."""
    machine = platform.machine()
    for manifest in manifests:
        described = manifest.get("platform") or {}
        if described.get("os") == "linux" and described.get("architecture") == _MACHINES.get(machine, machine):
            return str(manifest["digest"])
    raise ValueError(f"there is no manifest for {machine}")


def _manifest(url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return a manifest. Adds a token to ``headers`` if the registry requires one. Raises OSError, ValueError."""
    try:
        return _json(url, headers)
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.startswith("Bearer ") or "Authorization" in headers:
            raise
    fields = dict(_CHALLENGE.findall(challenge))
    realm = fields.pop("realm", "")
    if urllib.parse.urlsplit(realm).scheme != urllib.parse.urlsplit(url).scheme:
        raise ValueError(f"a login at {realm!r} is required")
    answer = _json(f"{realm}?{urllib.parse.urlencode(fields)}", {})
    headers["Authorization"] = f"Bearer {answer.get('token') or answer['access_token']}"
    return _json(url, headers)


def _json(url: str, headers: dict[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (http or https: size, manifest)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        body = answer.read(_MOST + 1)
    document = json.loads(body) if len(body) <= _MOST else None
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object of at most {_MOST} bytes")
    return document
