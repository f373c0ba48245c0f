"""Signatures of calls over TCP without TLS. The shared secret is never sent.

Any account of a machine may listen on a free loopback port. The listener therefore proves first that it knows the
secret, and the signature of a call is valid for this call only:

1. The caller requests ``CHALLENGE`` with a nonce of its own. The answer has a nonce of novad, and an HMAC of both.
2. The call carries both nonces, the SHA-256 of its request, and an HMAC of these and of the method. Each nonce of novad
   is valid for one call.

A program between client and novad can read and change answers and suppress calls; it cannot make calls.
"""

import collections
import hashlib
import hmac
import secrets
import threading
import time

CHALLENGE = "/nova.novad.v1.Login/Challenge"
# Metadata of a challenge, and of a signed call.
NONCE, SIGNATURE = "novad-nonce", "novad-signature"
LIFETIME = 60.0  # Maximum number of seconds between a challenge and its call.

_SIZE = 16  # Length of random numbers in bytes.


def new_nonce() -> str:
    return secrets.token_hex(_SIZE)


def is_nonce(text: str) -> bool:
    """Return True if a caller may use this text as its nonce."""
    return len(text) == 2 * _SIZE and set(text) <= set("0123456789abcdef")


def proof(secret: str, ours: str, theirs: str) -> str:
    """Return novad's response to a challenge. ``ours``: the client's nonce; ``theirs``: novad's nonce."""
    return _mac(secret.encode(), "novad proves", ours, theirs)


def signature(secret: str, method: str, ours: str, theirs: str, request: bytes) -> str:
    """Return the metadata of a call to ``method`` with these bytes as its request."""
    digest = hashlib.sha256(request).hexdigest()
    return f"{ours} {theirs} {digest} {_mac(secret.encode(), 'caller proves', method, ours, theirs, digest)}"


def node_secret(secret: str, node: str) -> str:
    """Derive the shared secret of a node from ``secret``, the secret of the control node, which it does not reveal."""
    return _mac(secret.encode(), "secret of node", node)


def profiling_token(secret: str) -> str:
    """Return the token of clients that request profiles. It gives no other access, and does not reveal ``secret``."""
    return _mac(secret.encode(), "token for profiles")


def _mac(key: bytes, *words: str) -> str:
    return hmac.digest(key, "\0".join(words).encode(), "sha256").hex()


class Verifier:
    """Issues nonces and verifies calls signed with them. Stores only used nonces: unknown clients occupy no memory."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._key = secrets.token_bytes(32)
        self._used: collections.OrderedDict[str, float] = collections.OrderedDict()
        self._lock = threading.Lock()

    def challenge(self, ours: str) -> tuple[str, str]:
        """Return a new nonce, and the proof for the client's nonce ``ours``."""
        body = f"{time.monotonic() + LIFETIME}-{new_nonce()}"
        theirs = f"{body}-{_mac(self._key, body)}"
        return theirs, proof(self._secret, ours, theirs)

    def verified(self, method: str, given: str) -> str | None:
        """Return the SHA-256 that the call's request must have, or None if the signature is not valid. Its nonce must
        have been issued here within the last LIFETIME seconds, and not have been used before."""
        if given.count(" ") != 3:
            return None
        ours, theirs, digest, mac = given.split(" ")
        body, _dash, tag = theirs.rpartition("-")
        now = time.monotonic()
        expected = _mac(self._secret.encode(), "caller proves", method, ours, theirs, digest)
        if not hmac.compare_digest(mac.encode(), expected.encode()) or not hmac.compare_digest(
                tag.encode(), _mac(self._key, body).encode()) or now > float(body.partition("-")[0]):
            return None
        with self._lock:
            while self._used and next(iter(self._used.values())) < now - LIFETIME:
                self._used.popitem(last=False)
            if theirs in self._used:
                return None
            self._used[theirs] = now
        return digest
