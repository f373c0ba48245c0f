"""Fixtures of the federator: real API servers, shared by all files of this folder that a pytest process runs.

Tests are skipped if the programs of Kubernetes are missing; tools/kubernetes/build.sh builds them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova.common.errors import Invalid
from nova.federator.local.binaries import Binaries
from nova.federator.local.cluster import LocalCluster
from tests.integration.federator import clusters


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    try:
        return Binaries()
    except Invalid as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def cluster_directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("kubernetes")


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[clusters.Cluster]:
    """Yield a control plane of Nova with the custom resources, without scheduler and agents."""
    cluster = clusters.start_control_plane(cluster_directory / "nova")
    yield cluster
    clusters.remove([cluster])


@pytest.fixture(scope="session")
def members(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[list[clusters.Cluster]]:
    """Yield three clusters, member-1 to member-3, with all controllers and two fake nodes of 8 CPUs and 32 GiB."""
    names = [f"member-{number}" for number in (1, 2, 3)]
    started = clusters.start([LocalCluster(cluster_directory / name, name, clusters.MEMBER) for name in names])
    yield started
    clusters.remove(started)


@pytest.fixture(autouse=True)
def _heal() -> Iterator[None]:
    """Heal the clusters that a test has cut, also after its failure."""
    yield
    for cluster in clusters.RUNNING:
        if cluster.frozen:
            cluster.heal()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Add the last output of all parts of a failed test's clusters to its report."""
    report = yield
    if report.failed and hasattr(report.longrepr, "addsection"):
        used = [value for argument in getattr(item, "funcargs", {}).values()
                for value in (argument if isinstance(argument, list) else [argument])]
        for cluster in (cluster for cluster in clusters.RUNNING if cluster in used):
            for title, text in cluster.logs():
                report.longrepr.addsection(title, text)
    return report
