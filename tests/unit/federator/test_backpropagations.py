"""Reports of agents on ReplicaSets and Pods: limits, and the distrust of the control plane. Facts chapter 5."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
import zstandard

from nova.common.errors import Invalid
from nova.federator.api.types import Ref
from nova.federator.store import backpropagations
from nova.federator.store.backpropagations import LIMIT, pack
from nova.federator.store.schedules import PART_LIMIT

REF = Ref("apps", "v1", "Deployment", "shop", "web")


def pod(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "Pod", "uid": f"u{number}", "name": f"pod-{number}", "spec": {}, **fields}


def stored(content: str, **changes: Any) -> dict[str, Any]:
    obj = backpropagations.render("nova-cluster-a", REF, "uid-1", "web-1", "uid-2", content, 0)
    return {**obj, "spec": {**obj["spec"], **changes}}


def test_report_is_read_as_it_was_written() -> None:
    content, omitted = pack([pod(1, node="n1", parent="p", labels={"a": "b"})])
    published = backpropagations.decode(stored(content))
    assert (published.ref, published.uid, published.schedule, omitted) == (REF, "uid-1", "web-1", 0)
    part, = published.owned()
    assert (part.name, part.node, part.parent, part.labels) == ("pod-1", "n1", "p", {"a": "b"})


def test_number_of_objects_is_limited_on_both_sides() -> None:
    content, omitted = pack([pod(number) for number in range(LIMIT + 7)])
    assert omitted == 7
    assert len(backpropagations.decode(stored(content)).owned()) == LIMIT
    hostile = backpropagations.schedules.pack([pod(number) for number in range(LIMIT + 7)])
    assert len(backpropagations.decode(stored(hostile)).owned()) == LIMIT


def test_size_of_a_report_is_limited() -> None:
    noise = random.Random(1)
    pods = [pod(number, annotations={"noise": noise.randbytes(8192).hex()}) for number in range(200)]
    content, omitted = pack(pods)
    assert len(content) <= PART_LIMIT
    assert 0 < omitted < 200


def test_size_of_uncompressed_objects_is_limited_on_both_sides() -> None:
    """A report of some kilobytes must not fill the memory of the scheduler."""
    pods = [pod(number, annotations={"text": "x" * (256 << 10)}) for number in range(100)]
    content, omitted = pack(pods)
    assert 0 < len(backpropagations.decode(stored(content)).owned()) == 100 - omitted < 100
    with pytest.raises(Invalid, match="too large"):
        backpropagations.decode(stored(backpropagations.schedules.pack(pods))).owned()
    with pytest.raises(Invalid, match=r"spec\.content: more than"):
        backpropagations.decode(stored("A" * (PART_LIMIT + 1)))


def test_object_that_is_reported_twice_is_returned_once() -> None:
    content, _omitted = pack([pod(1), pod(2), pod(1, name="other")])
    assert [(part.uid, part.name) for part in backpropagations.decode(stored(content)).owned()] == [
        ("u1", "other"), ("u2", "pod-2")]


def test_content_that_is_nested_too_deeply_is_refused() -> None:
    nested = b'[{"kind": "Pod", "uid": "u", "name": "n", "spec": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}]"
    packed = base64.b64encode(zstandard.ZstdCompressor().compress(nested)).decode()
    with pytest.raises(Invalid, match="nested too deeply"):
        backpropagations.decode(stored(packed)).owned()


@pytest.mark.parametrize("changes", [
    {"object": {"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "other", "name": "web"}},
    {"object": "text"}, {"uid": ""}, {"omitted": -1}, {"schedule": 1}])
def test_report_that_does_not_fit_its_name_or_schema_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        backpropagations.decode(stored("", **changes))


@pytest.mark.parametrize("entry", [pod(1, kind="Secret"), pod(1, name=""), pod(1, labels={"a": 1}), {"kind": "Pod"}])
def test_content_that_is_no_list_of_pods_is_refused(entry: dict[str, Any]) -> None:
    published = backpropagations.decode(stored(backpropagations.schedules.pack([entry])))
    with pytest.raises(Invalid):
        published.owned()


@pytest.mark.parametrize("content", ["", "%%%", "AAAA"])
def test_damaged_content_is_refused(content: str) -> None:
    with pytest.raises(Invalid):
        backpropagations.decode(stored(content)).owned()
