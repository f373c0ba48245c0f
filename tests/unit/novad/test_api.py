"""The generated part of the API of novad, and its errors as clients receive them."""

import re

import grpc
import pytest
from packaging.requirements import Requirement

from nova.novad.client import ANSWERED, was_lost
from tests.paths import ROOT
from tests.unit.test_packaging import requirements
from tools import novad_api


def test_generated_api_matches_the_proto_file():
    assert novad_api.different() == [], "run python -m tools.novad_api"


def oldest(name: str) -> set[str]:
    return {spec.version for one in requirements() if one.name == name for spec in one.specifier}


def test_required_libraries_are_new_enough_for_the_generated_api():
    assert oldest("protobuf")
    text = (ROOT / "nova/novad/api/novad_pb2.py").read_text()
    runtime = ".".join(re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+)", text).groups())
    assert all(Requirement(f"protobuf>={runtime}").specifier.contains(version) for version in oldest("protobuf"))


class CallError(grpc.RpcError):
    def __init__(self, code, details, metadata=()):
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: details, lambda: metadata


@pytest.mark.parametrize(("error", "lost"), [
    (CallError(grpc.StatusCode.UNAVAILABLE, "Connection refused"), True),
    (CallError(grpc.StatusCode.UNAVAILABLE, None, None), True),
    (CallError(grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)"), True),
    (CallError(grpc.StatusCode.UNKNOWN, "Exception calling application: 1"), False),
    (CallError(grpc.StatusCode.UNKNOWN, None), False),
    (CallError(grpc.StatusCode.UNAVAILABLE, "podman does not answer", [(ANSWERED, "1")]), False),
    (CallError(grpc.StatusCode.ABORTED, "Stream removed"), False),
])
def test_lost_connection_is_distinguished_from_an_error_of_novad(error, lost):
    assert was_lost(error) == lost
