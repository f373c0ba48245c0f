"""Certificates of the Nova control plane, and the Secrets that hold them: three certificate authorities, certificates
of servers and clients, and the key pair that signs tokens of service accounts."""

import base64
import datetime
import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nova.common import plain_ip
from nova.common.errors import Invalid
from nova.federator.api import times
from nova.federator.kube.config import Kubeconfig

HOURS = 87_600  # validity of all certificates, in hours
AUTHORITIES = ("kubernetes-ca", "etcd-ca", "kubernetes-front-proxy-ca")
MASTERS = "system:masters"
CONTROL_PLANE, ETCD, KUBECONFIG, SIGNING = "nova-cert", "etcd-cert", "nova-kubeconfig", "nova-ca"  # names of Secrets
_BITS = 2048
_HOST = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Files = dict[str, bytes]  # file name in a Secret -> PEM


class CertificateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses in the certificates. ``endpoint``: address or name by which clients reach the API server. ``node``: a
    further address or name, or empty. Raises Invalid for other values."""

    endpoint: str
    namespace: str = "elotl"
    node: str = ""

    def __post_init__(self) -> None:
        for option, host in (("apiserver-public-endpoint", self.endpoint), ("nova-node-ip", self.node)):
            if (host or option.startswith("apiserver")) and not _valid(host):
                raise Invalid(f"--{option}: {host[:80]!r} is neither an IP address nor a DNS name.")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise Invalid(f"--namespace: {self.namespace[:80]!r} is not a valid name of a namespace.")

    @property
    def domains(self) -> tuple[str, ...]:
        return f"*.{self.namespace}.svc.cluster.local", f"*.{self.namespace}.svc", "localhost"


class Authority:
    """A certificate authority: its certificate and its RSA key."""

    def __init__(self, certificate: x509.Certificate, key: rsa.RSAPrivateKey) -> None:
        self.certificate, self.key = certificate, key

    @classmethod
    def create(cls, name: str) -> Self:
        """Create a self-signed authority."""
        key = _key()
        subject = _name(name)
        usage = x509.KeyUsage(True, False, True, False, False, True, True, False, False)
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256()))
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """Return a stored authority. Raises Invalid if certificate and key are unreadable or do not match."""
        try:
            parsed, private = x509.load_pem_x509_certificate(certificate), serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise Invalid(f"The certificate authority is unreadable: {error}") from None
        if not isinstance(private, rsa.RSAPrivateKey) or private.public_key() != parsed.public_key():
            raise Invalid("The key of the certificate authority is not the key of its certificate.")
        return cls(parsed, private)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _private(self.key)

    def issue(self, common_name: str, organization: str = "", hosts: tuple[str, ...] = (), client: bool = True,
              ) -> tuple[bytes, bytes]:
        """Return a new certificate and its key (PEM). ``hosts``: names and addresses of a server, for which it is
        valid. ``client``: it is valid for a client. A certificate may be valid for both."""
        key = _key()
        usages = [*([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else ()),
                  *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else ())]
        usage = x509.KeyUsage(True, False, True, False, False, False, False, False, False)
        builder = (
            _builder(_name(common_name, organization), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False))
        if hosts:
            names = [_alternative(host) for host in dict.fromkeys(hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return certificate, _private(key)


Authorities = Mapping[str, Authority]  # by their names


def create_authorities() -> dict[str, Authority]:
    """Create the three authorities. Their keys are new random numbers at each call."""
    return {name: Authority.create(name) for name in AUTHORITIES}


def control_plane_files(options: CertificateOptions, authorities: Authorities, token_keys: Mapping[str, bytes],
                        ) -> Files:
    """Issue the certificates of the API server and its clients. ``token_keys``: sa.key and sa.pub."""
    kubernetes, etcd, proxy = (authorities[name] for name in AUTHORITIES)
    files: Files = {"front-proxy-ca.crt": proxy.pem, "ca.crt": kubernetes.pem}
    hosts = tuple(host for host in (options.endpoint, *options.domains, options.node) if host)
    for name, (certificate, key) in {
            "front-proxy-client": proxy.issue("front-proxy-client"),
            "apiserver": kubernetes.issue("kube-apiserver", hosts=hosts, client=False),
            "apiserver-etcd-client": etcd.issue("kube-apiserver-etcd-client", MASTERS),
            "apiserver-client": kubernetes.issue("kube-apiserver-client", MASTERS)}.items():
        files |= {f"{name}.crt": certificate, f"{name}.key": key}
    return {**files, "sa.key": token_keys["sa.key"], "sa.pub": token_keys["sa.pub"]}


def etcd_files(options: CertificateOptions, authorities: Authorities) -> Files:
    """Issue the certificate of the members of etcd, for clients and for one another."""
    etcd = authorities["etcd-ca"]
    members = f"etcd.{options.namespace}.svc"
    hosts = (*options.domains, "127.0.0.1", f"*.{members}.cluster.local", f"*.{members}",
             *(f"etcd-{number}.{members}.cluster.local" for number in range(3)))
    certificate, key = etcd.issue("kube-etcd", hosts=hosts)
    return {"ca.crt": etcd.pem, "server.crt": certificate, "server.key": key}


def token_keys() -> Files:
    """Create the key pair that signs tokens of service accounts."""
    key = _key()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return {"sa.key": _private(key), "sa.pub": public}


def kubeconfig_file(namespace: str) -> bytes:
    """Return the kubeconfig of the control plane's own components, which mount the certificates."""
    pki = "/etc/kubernetes/pki"
    return f"""\
apiVersion: v1
clusters:
- cluster:
    certificate-authority: {pki}/ca.crt
    server: https://apiserver.{namespace}.svc.cluster.local
  name: nova
contexts:
- context:
    cluster: nova
    user: nova-admin
  name: nova
current-context: nova
kind: Config
preferences: {{}}
users:
- name: nova-admin
  user:
    client-certificate: {pki}/apiserver-client.crt
    client-key: {pki}/apiserver-client.key
""".encode()


def secrets(options: CertificateOptions, authorities: Authorities | None = None) -> list[dict[str, Any]]:
    """Return the manifests of the four Secrets of a new control plane."""
    created = authorities or create_authorities()
    kubernetes = created["kubernetes-ca"]
    return [
        secret(CONTROL_PLANE, options.namespace, control_plane_files(options, created, token_keys())),
        secret(ETCD, options.namespace, etcd_files(options, created)),
        secret(KUBECONFIG, options.namespace, {"kubeconfig": kubeconfig_file(options.namespace)}),
        secret(SIGNING, options.namespace, {"ca.crt": kubernetes.pem, "ca.key": kubernetes.key_pem})]


def secret(name: str, namespace: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest of a Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "type": "Opaque",
            "data": {file: base64.b64encode(content).decode() for file, content in files.items()}}


def files_of(stored: Mapping[str, Any]) -> Files:
    """Return the files of a stored Secret. Raises Invalid."""
    metadata = stored.get("metadata") or {}
    try:
        return {str(file): base64.b64decode(content, validate=True)
                for file, content in (stored.get("data") or {}).items()}
    except ValueError as error:
        raise Invalid(f"Secret {metadata.get('namespace')}/{metadata.get('name')}: data: {error}") from None


def administrator(stored: Mapping[str, Any], server: str) -> Kubeconfig:
    """Return the credentials of nova-admin from the stored Secret nova-cert. Raises Invalid if files are missing."""
    files = files_of(stored)
    names = ("ca.crt", "apiserver-client.crt", "apiserver-client.key")
    if missing := [name for name in names if name not in files]:
        raise Invalid(f"Secret {CONTROL_PLANE}: the files {', '.join(missing)} are missing.")
    authority, certificate, key = (files[name] for name in names)
    return Kubeconfig(server=server, ca=authority, certificate=certificate, key=key, context="nova")


def options_of(certificate: bytes, namespace: str) -> CertificateOptions:
    """Return the options with which a certificate of the API server was issued. Raises Invalid."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise Invalid(f"The certificate of the API server is unreadable: {error}") from None
    hosts = [str(name.value) for name in names]
    domains = CertificateOptions(endpoint="localhost", namespace=namespace).domains
    if not set(domains) < set(hosts):
        raise Invalid(f"The certificate of the API server was not issued for namespace {namespace}.")
    hosts = [host for host in hosts if host not in domains]
    return CertificateOptions(endpoint=hosts[0], namespace=namespace, node=hosts[1] if len(hosts) > 1 else "")


def split_bundle(bundle: bytes) -> list[bytes]:
    """Return the certificates of a PEM bundle, normalized. Raises Invalid."""
    try:
        return [certificate.public_bytes(serialization.Encoding.PEM)
                for certificate in x509.load_pem_x509_certificates(bundle)]
    except ValueError as error:
        raise Invalid(f"ca.crt is not a list of certificates: {error}") from None


def issued_by(certificate: bytes, authority: bytes) -> bool:
    """Return True if the authority signed the certificate. Raises Invalid if either is unreadable."""
    try:
        parsed, issuer = (x509.load_pem_x509_certificate(pem) for pem in (certificate, authority))
    except ValueError as error:
        raise Invalid(f"A certificate is unreadable: {error}") from None
    try:
        parsed.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=_BITS)


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL,
                             serialization.NoEncryption())


def _name(common_name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - times.CLOCK_ERROR)
            .not_valid_after(now - times.CLOCK_ERROR + datetime.timedelta(hours=HOURS)))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(plain_ip.address(host))
    except ValueError:
        return x509.DNSName(host)


def _valid(host: str) -> bool:
    try:
        plain_ip.address(host)
        return True
    except ValueError:
        return len(host) <= 253 and _HOST.fullmatch(host) is not None and not host.replace(".", "").isdigit()
