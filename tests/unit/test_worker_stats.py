"""Statistics that worker processes report."""

import os

import pytest

from nova import conf
from nova.objects.base import utcnow
from nova.objects.hosts.service import WorkerStats
from nova.telemetry import worker_stats


@pytest.fixture(autouse=True)
def options() -> None:
    conf.register()


def test_meter_counts_running_and_completed_work() -> None:
    meter = worker_stats.Meter()
    with meter.work():
        meter.wait(2)
        seen = meter.take(0)
        assert (seen.busy, seen.waiting, seen.pid) == (1, 2, os.getpid())
    after = meter.take(0)
    assert (after.busy, after.per_second > 0, after.rss_mb > 5) == (0, True, True)
    assert meter.take(0).per_second == 0


def test_meter_counts_failed_work_as_ended() -> None:
    meter = worker_stats.Meter()
    with pytest.raises(ZeroDivisionError), meter.work():
        raise ZeroDivisionError
    assert meter.take(0).busy == 0


def test_forked_workers_share_statistics() -> None:
    statistics = worker_stats.WorkerStatistics(2)
    statistics.write(WorkerStats(worker=0, at=utcnow(), busy=1))
    child = os.fork()
    if child == 0:
        statistics.write(WorkerStats(worker=1, at=utcnow(), busy=7))
        os._exit(0)
    os.waitpid(child, 0)
    assert [(found.worker, found.busy) for found in statistics.read()] == [(0, 1), (1, 7)]


def test_statistics_omit_workers_without_recent_reports() -> None:
    statistics = worker_stats.WorkerStatistics(2)
    statistics.write(WorkerStats(worker=0, at=utcnow().replace(year=2020)))
    statistics.write(WorkerStats(worker=1, at=utcnow()))
    assert [found.worker for found in statistics.read()] == [1]
