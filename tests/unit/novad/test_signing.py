"""Tests of request signatures."""

import pytest

from nova.novad import signing
from nova.novad.signing import Verifier, new_nonce, node_secret, profiling_token, proof, signature


@pytest.fixture
def verifier():
    return Verifier("secret")


SECRET = "secret"


def signed(verifier, secret=SECRET, method="/m", request=b"r"):
    ours = new_nonce()
    theirs, proved = verifier.challenge(ours)
    assert proved == proof("secret", ours, theirs)
    return signature(secret, method, ours, theirs, request)


def test_signature_is_valid_once_and_for_its_method_and_secret_only(verifier):
    given = signed(verifier)
    assert verifier.verified("/other", given) is None
    assert Verifier("secret").verified("/m", given) is None
    assert verifier.verified("/m", signed(verifier, secret="guess")) is None
    assert len(verifier.verified("/m", given)) == 64
    assert verifier.verified("/m", given) is None


@pytest.mark.parametrize("given", ["", "a b c", "a b c d", "a b c d e", " " * 3, "\u00e9 b c d", "0" * 64])
def test_malformed_signature_is_refused(verifier, given):
    assert verifier.verified("/m", given) is None


def test_server_proof_is_not_accepted_as_a_signature(verifier):
    ours = new_nonce()
    theirs, proved = verifier.challenge(ours)
    assert verifier.verified("/m", f"{ours} {theirs} {'0' * 64} {proved}") is None


def test_nonce_expires_after_its_lifetime_and_is_deleted(verifier, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(signing.time, "monotonic", lambda: now[0])
    late = signed(verifier)
    for _call in range(50):
        assert verifier.verified("/m", signed(verifier))
    now[0] += signing.LIFETIME + 1
    assert verifier.verified("/m", late) is None
    assert verifier.verified("/m", signed(verifier))
    assert len(verifier._used) == 1


def test_callers_without_the_secret_use_no_memory(verifier):
    for _call in range(1000):
        assert verifier.verified("/m", signed(verifier, secret="guess")) is None
    assert len(verifier._used) == 0


def test_node_secrets_differ_from_each_other_and_the_control_node():
    assert len({SECRET, node_secret("other", "n1"), *(node_secret(SECRET, name) for name in ("n1", "n2", "n"))}) == 5


def test_profiling_token_is_no_secret_of_the_node_or_of_other_nodes():
    assert len({SECRET, profiling_token(SECRET), profiling_token("other"), node_secret(SECRET, ""),
                node_secret(SECRET, "token for profiles")}) == 5
