"""Listens to notifications, through oslo.messaging's test driver."""

import contextlib

from oslo_messaging.notify import _impl_test

from nova.conductor.background.sender import sending
from nova.conf import CONF
from tests.functional.client import wait_for
from tests.notifications import wrong


class Listener:
    """What was published since it was made, in order."""

    def __init__(self):
        _impl_test.reset()

    @property
    def messages(self):
        return [message for _ctxt, message, _priority, _retry in list(_impl_test.NOTIFICATIONS)]

    @property
    def versioned(self):
        return [message for message in self.messages if "nova_object.data" in message["payload"]]

    @property
    def unversioned(self):
        return [message for message in self.messages if "nova_object.data" not in message["payload"]]

    def of(self, uuid, updates=False):
        """The versioned ones of a server; with ``updates`` also those that tell how it is, whatever is done."""
        return [message for message in self.versioned if message["payload"]["nova_object.data"].get("uuid") == uuid
                and (updates or message["event_type"] not in ("instance.update", "instance.exists"))]

    def types(self, uuid, **how):
        return [message["event_type"].removeprefix("instance.") for message in self.of(uuid, **how)]

    def wait(self, uuid, event_type, **values):
        """The payload's data of the first message of this type that has these values."""
        def found():
            return next((data for message in self.of(uuid, updates=True)
                         if message["event_type"] == f"instance.{event_type}"
                         and (data := message["payload"]["nova_object.data"])
                         and all(data[name] == value for name, value in values.items())), None)

        wait_for(found, 20, f"{event_type} is told")
        return found()


@contextlib.contextmanager
def listen(suite, **options):
    """Have these [notifications] told; afterwards all of them were of the right shape."""
    core, group = suite.conductor.core, "oslo_messaging_notifications"
    with contextlib.ExitStack() as stack:
        CONF.set_override("driver", ["test"], group=group)
        stack.callback(core.outbox.configure)
        stack.callback(CONF.clear_override, "driver", group=group)
        for name, value in {"notification_format": "versioned", **options}.items():
            CONF.set_override(name, value, group="notifications")
            stack.callback(CONF.clear_override, name, group="notifications")
        core.outbox.configure()
        listener, thread = Listener(), sending(core)
        thread.start()
        stack.callback(thread.stop)
        yield listener
    found = [found for message in listener.versioned if (found := wrong(message))]
    assert found == [], found
