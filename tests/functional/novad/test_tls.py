"""TLS, and certificates of callers."""

import pytest

from tests.certificates import authority


@pytest.fixture
def ours():
    with authority() as found:
        yield found


def test_with_tls_callers_trust_its_authority_and_know_the_secret(serve, ours):
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


def test_callers_need_a_certificate_where_novad_wants_one(serve, ours):
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
