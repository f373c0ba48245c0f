"""Tests of the cache of a collection."""

from __future__ import annotations

from typing import Any

from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig
from nova.federator.kube.informer import Informer


def test_late_response_of_a_write_does_not_replace_a_later_state() -> None:
    """A watch may report the next state before the response of the write arrives; then no further event follows."""
    informer: Informer[dict[str, Any]] = Informer(Api(Kubeconfig(server="https://unused")), "/", lambda obj: obj)
    late, later = ({"metadata": {"name": "web", "resourceVersion": version}} for version in ("9", "10"))
    assert informer.put(later)
    assert not informer.put(late)
    assert informer.objects["web"] is later
