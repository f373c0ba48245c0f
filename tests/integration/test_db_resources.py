"""The conductor's resources on PostgreSQL and MariaDB: the same behaviour as on SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from nova import conf
from nova.conductor.control import ConductorControl
from nova.conductor.endpoints.networks import Networks
from nova.db import fixed_ips, migrate
from nova.objects.base import new_uuid
from nova.objects.network import Network, NetworkRequest
from nova.objects.scheduling import Selection
from tests.integration.databases import mariadb, postgresql  # noqa: F401
from tests.unit.conductor.books import Books, ctx, server
from tests.unit.conductor.conftest import own_clock, settings  # noqa: F401
from tests.unit.conductor.test_aggregates import *  # noqa: F403
from tests.unit.conductor.test_audit import *  # noqa: F403
from tests.unit.conductor.test_audit_storm import *  # noqa: F403
from tests.unit.conductor.test_claims import asking
from tests.unit.conductor.test_claims import hosts as selections  # noqa: F401
from tests.unit.conductor.test_fixed_ips import *  # noqa: F403
from tests.unit.conductor.test_flavors import *  # noqa: F403
from tests.unit.conductor.test_network_hosts import *  # noqa: F403
from tests.unit.conductor.test_networks import *  # noqa: F403
from tests.unit.conductor.test_nodes import *  # noqa: F403
from tests.unit.conductor.test_purge import *  # noqa: F403
from tests.unit.conductor.test_quotas import *  # noqa: F403
from tests.unit.conductor.test_security_groups import *  # noqa: F403
from tests.unit.conductor.test_services import *  # noqa: F403
from tests.unit.conductor.test_user_resources import *  # noqa: F403


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def books(request: pytest.FixtureRequest) -> Iterator[Books]:
    conf.register()
    url = request.getfixturevalue(request.param).new_database()
    migrate.sync(url)
    made = Books(url)
    yield made
    made.db.close()


@pytest.fixture
def core(books: Books) -> Books:
    books.reset()
    return books


def test_boots_on_one_network_do_not_wait_for_one_another(core: Books) -> None:
    """Of two transactions under way the second one takes an address before the first has ended."""
    made = Networks(core).create(ctx(), Network(uuid="", label="n", cidr="10.0.0.0/24", gateway="", bridge="",
                                                cidr_v6="fd00::/64"))
    taken = []
    with core.db.engine.connect() as first, first.begin():
        taken.append(fixed_ips.take(first, made, new_uuid(), new_uuid()))
        with core.db.engine.connect() as second, second.begin():
            second.execute(sa.text("SET SESSION innodb_lock_wait_timeout = 1" if core.db.dialect != "postgresql"
                                   else "SET LOCAL lock_timeout = '1s'"))
            taken.append(fixed_ips.take(second, made, new_uuid(), new_uuid()))
            second.rollback()
    assert [one.addresses[0] for one in taken] == ["10.0.0.2", "10.0.0.3"]
    again = core.db.write(lambda connection: fixed_ips.take(connection, made, new_uuid(), new_uuid()))
    assert again == taken[1]


def test_placements_on_one_network_do_not_wait_for_one_another(
        core: Books, selections: dict[str, Selection]) -> None:  # noqa: F811
    """All that the transaction of a placement takes, on two nodes: whoever waits does so for its node only."""
    made = Networks(core).create(ctx(), Network(uuid="", label="n", cidr="10.0.0.0/24", gateway="", bridge=""))

    def place(host: str, connection: sa.Connection) -> ConductorControl:
        ctl = ConductorControl(core, ctx(), server(core, requested_networks=[NetworkRequest(network_id=made.uuid)]))
        ctl.claim(selections[host], asking())
        ctl.interfaces.take()
        ctl.set(host=host, node=host)
        ctl.apply(connection)
        return ctl

    with core.db.engine.connect() as first, first.begin():
        placed = [place("a", first)]
        with core.db.engine.connect() as second, second.begin():
            second.execute(sa.text("SET SESSION innodb_lock_wait_timeout = 1" if core.db.dialect != "postgresql"
                                   else "SET LOCAL lock_timeout = '1s'"))
            placed.append(place("b", second))
            with pytest.raises(Exception, match=r"(?i)lock"):  # the test can tell: this one does wait
                place("a", second)
    addresses = {ctl.instance.network_info[0].fixed_ips[0].address for ctl in placed}
    assert addresses == {"10.0.0.2", "10.0.0.3"}
