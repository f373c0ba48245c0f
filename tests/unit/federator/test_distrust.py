"""Checks of what agents report and of what certificate requests contain. Facts promises P2 and P8 of chapter 12."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nova.common.errors import Invalid
from nova.federator.api.types import Ref, Spread
from nova.federator.controllers.signing import requested_cluster
from nova.federator.scheduling.decide import decide
from nova.federator.store import reports, schedules
from nova.federator.store.schedules import NEVER, STOP_MARGIN, Entry, Observed, Report
from tests.unit.federator.worlds import claims, cluster, group, item, policy

NONE = Report()
WEB = Ref("apps", "v1", "Deployment", "shop", "web")


def stored(generation: int, report: Report = NONE, name: str = "", **terms: Any) -> schedules.Schedule:
    """Return a schedule of WEB as the scheduler reads it."""
    spec = schedules.render_spec(WEB.key, [Entry(WEB, "u", "digest", 2)], "", **terms)
    body = schedules.render("member-1", spec)
    body["metadata"] |= {"generation": generation, **({"name": name} if name else {})}
    status = schedules.render_status(schedules.decode(body), report)["status"]
    return schedules.decode_checked({**body, "status": status})


def test_a_fence_counts_once_the_agent_has_confirmed_it() -> None:
    """Promise P2: an agent that was cut off during an edit may still carry out the earlier terms."""
    done = Report(2, 1, (Observed(WEB, "Ready", "digest"),))
    refused = Report(2, 1, (Observed(WEB, "Failed", ""),))
    terms: dict[str, Any] = {"failover": "Fenced", "fence_after": 10, "stop_time": 5}
    own = 15 + STOP_MARGIN
    assert stored(1, failover="Never").silence == NEVER
    assert stored(1, **terms).silence == own  # never had other terms
    assert stored(2, prior_silence=NEVER, **terms).silence == NEVER
    assert stored(2, refused, prior_silence=NEVER, **terms).silence == NEVER
    assert stored(2, done, prior_silence=NEVER, **terms).silence == own
    assert stored(3, done, prior_silence=100, **terms).silence == 100


def test_a_schedule_of_a_forged_group_is_invalid() -> None:
    """Promise P8: the name of a schedule, which an agent cannot choose, proves its group."""
    with pytest.raises(Invalid, match=r"spec\.group"):
        stored(1, name=schedules.name_of("Deployment.apps/shop/other"))


def test_an_excluded_cluster_that_is_unreachable_keeps_its_share() -> None:
    """Promise P2: also if the policy selects it no more; and it holds no more replicas than there are."""
    clusters = [cluster("a", reachable=False), cluster("b"), cluster("c")]
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["a"]}
    spread = policy({"matchExpressions": [others]}, Spread("kubernetes.io/metadata.name"))
    web = group(item("web", 9))
    key = web.items[0].ref.key
    decision = decide(web, spread, clusters, claims(*clusters), {"a": {key: 3}, "b": {key: 6}})
    assert decision.targets == {"a": {key: 3}, "b": {key: 3}, "c": {key: 3}}
    decision = decide(web, spread, clusters, claims(*clusters), {"a": {key: 10**18}, "b": {key: 6}})
    assert decision.targets["a"] == {key: 9}


@pytest.mark.parametrize("report", [
    {"nodes": [{"name": "n", "available": {"cpu": "lots"}}]}, {"nodes": [{"name": "n", "capacity": {"cpu": "-1"}}]},
    {"nodes": [{"name": "n", "taints": [{"key": "a"}]}]}, {"nodeGroups": {"g": {"minSize": -1}}},
    {"nodeGroups": {"g": {"other": "x"}}}, {"nodes": [{"name": "n"}] * 10_001}])
def test_reports_that_a_cluster_object_cannot_store_are_refused(report: dict[str, Any]) -> None:
    """Promise P8: an agent's report cannot make the scheduler's writes fail again and again."""
    with pytest.raises((Invalid, ValueError)):
        reports.decode({"report": report})


def test_certificate_requests_with_unsupported_keys_are_refused() -> None:
    """Promise P8: a request that the library cannot read is denied, and does not end the scheduler."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "nova:agents"),
                         x509.NameAttribute(NameOID.COMMON_NAME, "nova:agent:a")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    der = request.public_bytes(serialization.Encoding.DER)
    for old, new in ((b"\x2a\x86\x48\xce\x3d\x02\x01", b"\x2a\x86\x48\xce\x3d\x02\x09"),  # algorithm of the key
                     (b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x03"),  # curve
                     (b"\x2a\x86\x48\xce\x3d\x04\x03\x02", b"\x2a\x86\x48\xce\x3d\x04\x03\x09")):  # signature
        assert old in der
        pem = (b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(der.replace(old, new))
               + b"-----END CERTIFICATE REQUEST-----\n")
        with pytest.raises(Invalid):
            requested_cluster({"request": base64.b64encode(pem).decode(), "usages": ["client auth"]})
