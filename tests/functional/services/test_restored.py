"""A database restored from a backup while hosts run on with newer state."""

import sqlalchemy as sa

from nova.db import tables


def test_host_accepts_orders_after_a_database_restore(suite, admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    db, actions = suite.conductor.core.db, tables.actions
    backup = db.read(lambda connection: connection.scalar(sa.select(sa.func.max(actions.c.id))))
    for action, status in (("os-stop", "SHUTOFF"), ("os-start", "ACTIVE")):
        admin.action(uuid, action)
        admin.wait(uuid, status)
    admin.wait_idle(uuid)
    db.write(lambda connection: connection.execute(sa.delete(actions).where(actions.c.id > backup)))
    admin.action(uuid, "os-stop")
    admin.wait(uuid, "SHUTOFF")
    admin.action(uuid, "os-start")
    admin.wait(uuid, "ACTIVE")
