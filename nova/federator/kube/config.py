"""Kubeconfig files: the address and the credentials of an API server."""

import base64
import binascii
import os
import pathlib
import ssl
import tempfile
from typing import Any

import msgspec
import yaml

from nova.common.errors import Invalid, os_error_text

_LIMIT = 4 << 20  # bytes of a file


class Kubeconfig(msgspec.Struct, frozen=True, kw_only=True):
    """A context of a kubeconfig file. Certificates and keys are in PEM format; a missing one is empty."""

    server: str
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    context: str = ""
    tls_server_name: str = ""

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings, or None for plain HTTP. Raises Invalid for an unusable certificate or key."""
        if self.server.startswith("http://"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
            if self.certificate:
                with tempfile.NamedTemporaryFile(prefix="nova-") as file:  # mode 0600; ssl reads files only
                    file.write(self.certificate + b"\n" + self.key)
                    file.flush()
                    context.load_cert_chain(file.name, password=lambda: "")  # never ask for the password of a key
        except (ssl.SSLError, ValueError) as error:
            raise Invalid(f"The certificates of {self.server} in the kubeconfig are invalid: {error}") from None
        return context

    def render(self, user: str = "nova-admin") -> str:
        """Return a kubeconfig file with this context alone, with all data inline."""
        name = self.context or "nova"
        cluster = {"server": self.server, **_inline("certificate-authority-data", self.ca),
                   **({"tls-server-name": self.tls_server_name} if self.tls_server_name else {})}
        login = {**_inline("client-certificate-data", self.certificate), **_inline("client-key-data", self.key),
                 **({"token": self.token} if self.token else {})}
        text: str = yaml.safe_dump({
            "apiVersion": "v1", "clusters": [{"cluster": cluster, "name": name}],
            "contexts": [{"context": {"cluster": name, "user": user}, "name": name}], "current-context": name,
            "kind": "Config", "preferences": {}, "users": [{"name": user, "user": login}]}, sort_keys=False)
        return text


def _inline(field: str, data: bytes) -> dict[str, str]:
    return {field: base64.b64encode(data).decode()} if data else {}


def default_paths() -> list[pathlib.Path]:
    """Return the files of $KUBECONFIG, or ~/.kube/config, as kubectl does."""
    value = os.environ.get("KUBECONFIG", "")
    return [pathlib.Path(path) for path in value.split(":") if path] or [pathlib.Path.home() / ".kube" / "config"]


def load(paths: list[pathlib.Path] | None = None, context: str = "") -> Kubeconfig:
    """Return a context of kubeconfig files (default: :func:`default_paths`), merged as kubectl merges them: the first
    file with an entry wins. ``context``: name; empty for the current context or the only one. Raises Invalid."""
    files = default_paths() if paths is None else paths
    documents: list[tuple[dict[str, Any], pathlib.Path | None]] = [
        (_read(path, optional=len(files) > 1), path.parent) for path in files]
    return _choose(documents, f"The kubeconfig {':'.join(map(str, files))}", context)


def decode(content: bytes, source: str) -> Kubeconfig:
    """Return the current context of a kubeconfig with inline data, for example in a Secret. ``source``: name of the
    kubeconfig in errors. Raises Invalid, also if the kubeconfig refers to files."""
    return _choose([(_parse(content, source), None)], source, "")


def _choose(documents: list[tuple[dict[str, Any], pathlib.Path | None]], source: str, context: str) -> Kubeconfig:
    entries: dict[str, dict[str, tuple[dict[str, Any], pathlib.Path | None]]] = {
        "clusters": {}, "users": {}, "contexts": {}}
    current = ""
    for document, directory in documents:
        current = current or str(document.get("current-context") or "")
        for section, values in entries.items():
            listed = document.get(section) or []
            if not isinstance(listed, list):
                raise Invalid(f"{source}: {section} is not a list.")
            for entry in listed:
                if isinstance(entry, dict) and isinstance(entry.get(section[:-1]), dict):
                    values.setdefault(str(entry.get("name")), (entry[section[:-1]], directory))
    contexts = entries["contexts"]
    name = context or current or (next(iter(contexts)) if len(contexts) == 1 else "")
    if name not in contexts:
        raise Invalid(f"{source} has no context {name!r}."
                      f" It has: {', '.join(sorted(contexts)) or 'none'}.")
    chosen, _directory = contexts[name]
    for field in ("cluster", "user"):
        if str(chosen.get(field)) not in entries[f"{field}s"]:
            raise Invalid(f"{source}: context {name!r}: {field} {chosen.get(field)!r} is missing.")
    cluster, cluster_directory = entries["clusters"][str(chosen["cluster"])]
    user, user_directory = entries["users"][str(chosen["user"])]
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise Invalid(f"{source}: context {name!r}: server {server!r} is not an http or https address.")
    token = str(user.get("token") or "")
    if not token and user.get("tokenFile"):
        token = _token(_path(user_directory, user["tokenFile"]))
    return Kubeconfig(
        server=server.rstrip("/"), context=name, token=token,
        tls_server_name=str(cluster.get("tls-server-name") or ""),
        ca=_data(cluster, "certificate-authority", cluster_directory),
        certificate=_data(user, "client-certificate", user_directory), key=_data(user, "client-key", user_directory))


def in_cluster(directory: str = "/var/run/secrets/kubernetes.io/serviceaccount") -> Kubeconfig:
    """Return the credentials of the pod's service account. Raises Invalid outside a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise Invalid("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod. Pass a kubeconfig.")
    path = pathlib.Path(directory)
    return Kubeconfig(server=f"https://{f'[{host}]' if ':' in host else host}:{port}", ca=_filled(path / "ca.crt"),
                      token=_token(path / "token"), context="in-cluster")


def _token(path: pathlib.Path) -> str:
    return _filled(path).decode(errors="replace").strip()


def _read(path: pathlib.Path, optional: bool) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    # A file can be empty, for example if a shell has opened it for the output of "novactl get kubeconfig".
    content = _content(path)
    return _parse(content, f"The kubeconfig {path}") if content or not optional else {}


def _parse(content: bytes, source: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise Invalid(f"{source} is not YAML: {str(error)[:300]}") from None
    if not isinstance(document, dict):
        raise Invalid(f"{source} is not a mapping.")
    return document


def _path(directory: pathlib.Path | None, file: object) -> pathlib.Path:
    if directory is None:
        raise Invalid(f"The kubeconfig refers to the file {str(file)[:200]}, but must contain the data inline.")
    return directory / str(file)


def _data(entry: dict[str, Any], field: str, directory: pathlib.Path | None) -> bytes:
    if inline := entry.get(f"{field}-data"):
        try:
            return base64.b64decode(inline, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Invalid(f"{field}-data of the kubeconfig is not base64.") from None
    return _filled(_path(directory, entry[field])) if entry.get(field) else b""


def _filled(path: pathlib.Path) -> bytes:
    """Return the content of a file. Raises Invalid if it is empty: an empty ca.crt would trust all public CAs."""
    if not (content := _content(path)).strip():
        raise Invalid(f"{path} is empty.")
    return content


def _content(path: pathlib.Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
    except OSError as error:
        raise Invalid(f"Cannot read {path}: {os_error_text(error)}") from None
    if len(data) > _LIMIT:
        raise Invalid(f"{path} has more than {_LIMIT} bytes.")
    return data
