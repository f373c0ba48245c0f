"""Errors of novad as its clients receive them."""

import grpc
import pytest

from nova.novad.client import ANSWERED, was_lost


class Told(grpc.RpcError):
    def __init__(self, code, details, metadata=()):
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: details, lambda: metadata


@pytest.mark.parametrize(("error", "lost"), [
    (Told(grpc.StatusCode.UNAVAILABLE, "Connection refused"), True),
    (Told(grpc.StatusCode.UNAVAILABLE, None, None), True),
    (Told(grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)"), True),
    (Told(grpc.StatusCode.UNKNOWN, "Exception calling application: 1"), False),
    (Told(grpc.StatusCode.UNKNOWN, None), False),
    (Told(grpc.StatusCode.UNAVAILABLE, "podman does not answer", [(ANSWERED, "1")]), False),
    (Told(grpc.StatusCode.ABORTED, "Stream removed"), False),
])
def test_lost_connection_is_distinguished_from_an_error_of_novad(error, lost):
    assert was_lost(error) == lost
