"""TLS and client certificates of novad."""

import pytest

from nova.common.errors import Refused
from tests.certificates import authority


@pytest.fixture
def ours():
    with authority() as found:
        yield found


def test_tls_clients_need_the_ca_and_the_shared_secret(serve, ours):
    pair = ours.issue("novad")
    node = serve(tls_cert=pair.certificate, tls_key=pair.key)
    node.patch.setenv("NOVA_CACERT", ours.file)
    node.nova("deploy")
    node.patch.setenv("NOVA_SHARED_SECRET", "wrong")
    node.nova("info", code=4)
    node.patch.setenv("NOVA_SHARED_SECRET", node.secret)
    node.nova("--addr", f"tcp://127.0.0.1:{node.server.port}", "info", code=4)
    with authority() as others:
        node.patch.setenv("NOVA_CACERT", others.file)
        node.nova("info", code=4)
    node.patch.setenv("NOVA_CACERT", "/nowhere")
    assert "NOVA_CACERT" in node.nova("info", code=2).err


@pytest.mark.parametrize("wrong", ["tls_cert", "tls_key", "client_ca", "pair"])
def test_unusable_certificates_are_named_when_novad_starts(serve, ours, tmp_path, wrong):
    (tmp_path / "garbage").write_text("garbage")
    pair = ours.issue("novad")
    files = {"tls_cert": pair.certificate, "tls_key": ours.issue("other").key if wrong == "pair" else pair.key,
             "client_ca": ours.file}
    with pytest.raises(Refused, match=r"in use .* or tls_cert, tls_key or client_ca cannot be used"):
        serve(**files | ({} if wrong == "pair" else {wrong: str(tmp_path / "garbage")}))


def test_client_certificate_is_required_when_client_ca_is_set(serve, ours):
    pair = ours.issue("novad")
    node = serve(tls_cert=pair.certificate, tls_key=pair.key, client_ca=ours.file)
    node.patch.setenv("NOVA_CACERT", ours.file)
    node.nova("info", code=4)
    with authority() as others:
        stranger = others.issue("stranger")
        node.patch.setenv("NOVA_CERT", stranger.certificate)
        node.patch.setenv("NOVA_KEY", stranger.key)
        node.nova("info", code=4)
    known = ours.issue("operator")
    node.patch.setenv("NOVA_CERT", known.certificate)
    node.patch.setenv("NOVA_KEY", known.key)
    assert "n1" in node.nova("info").out
