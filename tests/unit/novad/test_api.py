"""Tests of the generated part of the API of novad."""

import re

from packaging.requirements import Requirement

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
