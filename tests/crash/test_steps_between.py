"""Kill or freeze processes between steps: during requests and replies, or after the commit of an accepted request."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable

import pytest
import requests

from tests.crash import invariants
from tests.crash.rounds import Boots, Moment
from tests.crash.steps import Points
from tests.crash.test_steps import kill
from tests.integration.cluster import Cluster

# The POST of a user on its way to a conductor, and its response on its way back.
_API = (Moment("ask", "create"), Moment("ask", "create", "after"))
# The same at the conductor; the rows are written and no step has started.
_ACCEPTING = (Moment("answer", "create"), Moment("answer", "create", "after"), Moment("submit", "build"))
# The selection of a host: at the scheduler, and at the requesting conductor.
_CHOOSING = (Moment("answer", "select"), Moment("answer", "select", "after"), Moment("ask", "select", "after"))
# An order to a host: written but not sent; sent.
_ORDERING = (Moment("ask", "run"), Moment("ask", "run", "after"), Moment("answer", "run"))
# The end of a step: reported but not written; written but not acknowledged.
_REPORTING = (Moment("answer", "step_done"), Moment("answer", "step_done", "after"),
              Moment("ask", "step_done", "after"))
_MOMENTS = (*_API, *_ACCEPTING, *_CHOOSING, *_ORDERING, *_REPORTING)
# A stop on its way to a conductor and its reply on its way back; the same at the conductor.
_STOPPING = (Moment("ask", "operate"), Moment("ask", "operate", "after"),
             pytest.param(Moment("answer", "operate"), marks=pytest.mark.full),
             pytest.param(Moment("answer", "operate", "after"), marks=pytest.mark.full))
# service_down_time and rpc_response_timeout of the cluster, in seconds.
_DOWN = 10.0
# Requests that may have been refused: their servers were not promised.
_UNPROMISED = {Moment("ask", "create"), Moment("answer", "create")}


def freeze(nova: Cluster, name: str, seconds: float, release: Callable[[], object]) -> None:
    """Freeze a process for ``seconds``, release the points, and thaw the process."""
    nova.freeze(name)
    time.sleep(seconds)
    release()
    nova.thaw(name)


def test_boots_succeed_after_kills_at_all_moments_between_steps(nova: Cluster, points: Points) -> None:
    boots = Boots(nova, points, _MOMENTS)
    kill(nova, points, *boots.holders())
    boots.all_active(lost=len(_UNPROMISED))


@pytest.mark.full
@pytest.mark.parametrize("moment", _MOMENTS, ids=str)
def test_boot_succeeds_after_a_kill_at_this_moment(nova: Cluster, points: Points, moment: Moment) -> None:
    boots = Boots(nova, points, [moment])
    kill(nova, points, *boots.holders())
    boots.all_active(lost=int(moment in _UNPROMISED))


@pytest.mark.full
@pytest.mark.parametrize("moment", _MOMENTS, ids=str)
@pytest.mark.parametrize("seconds", [invariants.LEASE + 2.5, 13.0])
def test_boot_succeeds_after_a_freeze_at_this_moment(nova: Cluster, points: Points, moment: Moment,
                                                     seconds: float) -> None:
    """Freeze for longer than a lease, or also than the timeout of calls and service_down_time.

    A frozen conductor also withholds heartbeats, so a host may have been declared down either way.
    """
    boots = Boots(nova, points, [moment])
    [holder] = boots.holders()
    freeze(nova, holder, seconds, points.release_all)
    # A client whose request timed out got an error, and the server is deleted.
    lost = seconds > _DOWN and moment in (*_API, *_ACCEPTING)
    boots.all_active(lost=int(lost), once=seconds < _DOWN)


@pytest.mark.parametrize("moment", _STOPPING, ids=str)
def test_accepted_stop_is_executed_after_a_kill(nova: Cluster, points: Points, moment: Moment) -> None:
    """Kill the process that receives the user's request, or the conductor that handles it."""
    uuid = nova.api.boot("to-be-stopped")
    nova.api.wait(uuid, "ACTIVE", 40)
    hold = points.hold(moment.point, moment.when, method=moment.method)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(nova.api.request, "POST", f"/servers/{uuid}/action", {"os-stop": None})
        kill(nova, points, hold.wait())
        lost = isinstance(asked.exception(60), requests.RequestException)
    assert lost or asked.result().status_code in (202, 503)
    nova.restore()
    invariants.check(nova, [uuid])
    never = moment.when == "before"  # the stop was not accepted
    assert nova.api.servers()[uuid]["status"] == ("ACTIVE" if never else "SHUTOFF")
