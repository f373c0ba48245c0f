"""Certificates of the control plane: facts chapter 7."""

import asyncio
import base64
import datetime
import ssl
import subprocess

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nova.common.errors import Invalid
from nova.federator.client import certificates
from nova.federator.client.certificates import Authority, CertificateOptions
from nova.federator.kube.config import load

OPTIONS = CertificateOptions(endpoint="198.51.100.7", namespace="elotl", node="nodes.example.com")
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
DOMAINS = {"*.elotl.svc.cluster.local", "*.elotl.svc", "localhost"}
# Secret, file, Secret and file of the authority, CN, O, usages, alternative names.
LEAVES = [
    ("nova-cert", "apiserver", "nova-cert", "ca", "kube-apiserver", "", {SERVER},
     {"198.51.100.7", "nodes.example.com", *DOMAINS}),
    ("nova-cert", "apiserver-client", "nova-cert", "ca", "kube-apiserver-client", "system:masters", {CLIENT}, set()),
    ("nova-cert", "apiserver-etcd-client", "etcd-cert", "ca", "kube-apiserver-etcd-client", "system:masters",
     {CLIENT}, set()),
    ("etcd-cert", "server", "etcd-cert", "ca", "kube-etcd", "", {SERVER, CLIENT},
     {"127.0.0.1", *DOMAINS, "*.etcd.elotl.svc.cluster.local", "*.etcd.elotl.svc",
      *(f"etcd-{number}.etcd.elotl.svc.cluster.local" for number in range(3))}),
    ("nova-cert", "front-proxy-client", "nova-cert", "front-proxy-ca", "front-proxy-client", "", {CLIENT}, set())]


@pytest.fixture(scope="module")
def authorities():
    return certificates.create_authorities()


@pytest.fixture(scope="module")
def manifests(authorities):
    return {manifest["metadata"]["name"]: manifest for manifest in certificates.secrets(OPTIONS, authorities)}


@pytest.fixture(scope="module")
def files(manifests):
    return {name: certificates.files_of(manifest) for name, manifest in manifests.items()}


def test_the_secrets_have_the_files_of_chapter_7(manifests, files):
    """Facts chapter 7: names of Secrets and files. CA keys are in the fourth Secret only."""
    assert {name: set(content) for name, content in files.items()} == {
        "nova-cert": {"front-proxy-ca.crt", "front-proxy-client.crt", "front-proxy-client.key", "ca.crt",
                      "apiserver.crt", "apiserver.key", "apiserver-etcd-client.crt", "apiserver-etcd-client.key",
                      "apiserver-client.crt", "apiserver-client.key", "sa.key", "sa.pub"},
        "etcd-cert": {"ca.crt", "server.crt", "server.key"}, "nova-kubeconfig": {"kubeconfig"},
        "nova-ca": {"ca.crt", "ca.key"}}
    assert {manifest["metadata"]["namespace"] for manifest in manifests.values()} == {"elotl"}
    assert files["nova-ca"]["ca.crt"] == files["nova-cert"]["ca.crt"]


@pytest.mark.parametrize(("secret", "name", "issuer_secret", "issuer", "cn", "organization", "usages", "hosts"), LEAVES)
def test_certificates_have_subject_usages_and_names_of_chapter_7(
        files, secret, name, issuer_secret, issuer, cn, organization, usages, hosts):
    certificate = x509.load_pem_x509_certificate(files[secret][f"{name}.crt"])
    authority = x509.load_pem_x509_certificate(files[issuer_secret][f"{issuer}.crt"])
    certificate.verify_directly_issued_by(authority)
    key = serialization.load_pem_private_key(files[secret][f"{name}.key"], None)
    assert (key.key_size, key.public_key()) == (2048, certificate.public_key())
    subject = {attribute.oid: attribute.value for attribute in certificate.subject}
    assert subject[NameOID.COMMON_NAME] == cn
    assert subject.get(NameOID.ORGANIZATION_NAME, "") == organization
    extended = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(extended) == usages
    names = set()
    if hosts:
        values = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = {str(entry.value) for entry in values}
    assert names == hosts
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime == datetime.timedelta(hours=87_600)


@pytest.mark.parametrize(("name", "secret", "file"), [
    ("kubernetes-ca", "nova-cert", "ca.crt"), ("etcd-ca", "etcd-cert", "ca.crt"),
    ("kubernetes-front-proxy-ca", "nova-cert", "front-proxy-ca.crt")])
def test_authorities_are_self_signed_for_ten_years(files, name, secret, file):
    """Facts chapter 7: three self-signed authorities, RSA 2048."""
    authority = x509.load_pem_x509_certificate(files[secret][file])
    assert authority.subject == authority.issuer
    assert authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == name
    assert authority.public_key().key_size == 2048
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.not_valid_after_utc - authority.not_valid_before_utc == datetime.timedelta(hours=87_600)


def test_openssl_accepts_the_chains(files, tmp_path):
    """Facts chapter 7, checked by another implementation, with the purpose of each certificate."""
    for secret, name, issuer_secret, issuer, _cn, _organization, usages, _hosts in LEAVES:
        (tmp_path / "ca.crt").write_bytes(files[issuer_secret][f"{issuer}.crt"])
        (tmp_path / "leaf.crt").write_bytes(files[secret][f"{name}.crt"])
        for usage in usages:
            purpose = "sslserver" if usage == SERVER else "sslclient"
            result = subprocess.run(["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile",
                                     tmp_path / "ca.crt", tmp_path / "leaf.crt"],
                                    capture_output=True, text=True, timeout=30, check=False)
            assert result.returncode == 0, (name, result.stdout, result.stderr)
    (tmp_path / "ca.crt").write_bytes(files["etcd-cert"]["ca.crt"])
    (tmp_path / "leaf.crt").write_bytes(files["nova-cert"]["apiserver.crt"])
    wrong = subprocess.run(["openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "leaf.crt"],
                           capture_output=True, timeout=30, check=False)
    assert wrong.returncode != 0, "the authority of etcd did not issue the certificate of the API server"


def test_the_token_keys_are_a_pair(files):
    private = serialization.load_pem_private_key(files["nova-cert"]["sa.key"], None)
    assert private.key_size == 2048
    assert private.public_key() == serialization.load_pem_public_key(files["nova-cert"]["sa.pub"])


def test_the_kubeconfig_of_the_components_names_the_service(files, tmp_path):
    """Facts chapter 7: server https://apiserver.<ns>.svc.cluster.local, paths under /etc/kubernetes/pki."""
    document = yaml.safe_load(files["nova-kubeconfig"]["kubeconfig"])
    assert document["clusters"][0]["cluster"] == {
        "server": "https://apiserver.elotl.svc.cluster.local",
        "certificate-authority": "/etc/kubernetes/pki/ca.crt"}
    text = files["nova-kubeconfig"]["kubeconfig"].decode().replace("/etc/kubernetes/pki", str(tmp_path))
    for name in ("ca.crt", "apiserver-client.crt", "apiserver-client.key"):
        (tmp_path / name).write_bytes(files["nova-cert"][name])
    (tmp_path / "kubeconfig").write_text(text)
    assert load([tmp_path / "kubeconfig"]).tls() is not None


def test_the_structure_is_the_same_at_each_call(manifests):
    """Two calls differ in keys only, and no key is used twice."""
    again = certificates.secrets(OPTIONS)
    assert [(manifest["metadata"], list(manifest["data"])) for manifest in again] == [
        (manifest["metadata"], list(manifest["data"])) for manifest in manifests.values()]
    keys = [content for manifest in (*again, *manifests.values()) for file, content in manifest["data"].items()
            if file.endswith(".key")]
    assert len(set(keys)) == len(keys) == 14


@pytest.mark.parametrize(("field", "options"), [
    ("--apiserver-public-endpoint", {"endpoint": ""}), ("--apiserver-public-endpoint", {"endpoint": "a b"}),
    ("--apiserver-public-endpoint", {"endpoint": "256.1.1.1"}), ("--apiserver-public-endpoint", {"endpoint": "-a"}),
    ("--apiserver-public-endpoint", {"endpoint": "x" * 300}),
    ("--apiserver-public-endpoint", {"endpoint": "https://nova.example.com"}),
    ("--nova-node-ip", {"endpoint": "nova.example.com", "node": "fe80::1%eth0"}),
    ("--namespace", {"endpoint": "nova.example.com", "namespace": "Nova"}),
    ("--namespace", {"endpoint": "nova.example.com", "namespace": ""})])
def test_bad_addresses_are_refused_by_the_name_of_their_option(field, options):
    with pytest.raises(Invalid) as error:
        CertificateOptions(**options)
    assert error.value.message.startswith(field)


@pytest.mark.parametrize("endpoint", ["nova.example.com", "2001:db8::1", "198.51.100.7", "a1b2.elb.amazonaws.com"])
def test_options_are_read_back_from_a_certificate(authorities, endpoint):
    """A renewal issues certificates for the same addresses."""
    options = CertificateOptions(endpoint=endpoint, namespace="shop", node="10.0.0.1")
    hosts = (options.endpoint, *options.domains, options.node)
    certificate, _key = authorities["kubernetes-ca"].issue("kube-apiserver", hosts=hosts, client=False)
    assert certificates.options_of(certificate, "shop") == options
    with pytest.raises(Invalid):
        certificates.options_of(certificate, "other")


async def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=server)
    async with listener:
        host, port = listener.sockets[0].getsockname()[:2]
        reader, writer = await asyncio.open_connection(host, port, ssl=client, server_hostname="localhost")
        await asyncio.wait_for(reader.read(), 10)
        writer.close()


@pytest.mark.parametrize("server_renewed", [False, True])
@pytest.mark.parametrize("client_renewed", [False, True])
def test_both_authorities_are_trusted_during_the_overlap(authorities, tmp_path, server_renewed, client_renewed):
    """Promise P8, certs renew: old and new certificates of servers and clients accept one another. Both authorities
    have the same name."""
    old, new = authorities["kubernetes-ca"], Authority.create("kubernetes-ca")
    bundle = (old.pem + new.pem).decode()
    contexts = []
    for purpose, renewed in ((ssl.Purpose.CLIENT_AUTH, server_renewed), (ssl.Purpose.SERVER_AUTH, client_renewed)):
        server = purpose == ssl.Purpose.CLIENT_AUTH
        certificate, key = (new if renewed else old).issue(
            "x", hosts=("localhost",) if server else (), client=not server)
        path = tmp_path / f"{server}.pem"
        path.write_bytes(certificate + key)
        context = ssl.create_default_context(purpose, cadata=bundle)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(path)
        contexts.append(context)
    asyncio.run(_handshake(*contexts))
    only_old = ssl.create_default_context(cadata=old.pem.decode())
    only_old.load_cert_chain(tmp_path / "False.pem")
    if server_renewed:
        with pytest.raises(ssl.SSLCertVerificationError):
            asyncio.run(_handshake(contexts[0], only_old))


def test_damaged_secrets_name_the_secret():
    with pytest.raises(Invalid, match="Secret elotl/nova-cert"):
        certificates.files_of({"metadata": {"name": "nova-cert", "namespace": "elotl"}, "data": {"ca.crt": "%"}})
    with pytest.raises(Invalid, match=r"apiserver-client\.crt, apiserver-client\.key"):
        certificates.administrator({"data": {"ca.crt": base64.b64encode(b"x").decode()}}, "https://x")
