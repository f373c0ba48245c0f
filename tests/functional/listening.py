"""A listener for notifications, based on the test driver of oslo.messaging."""

import contextlib

from oslo_messaging.notify import _impl_test

from nova.conductor.background.sender import sending
from nova.conf import CONF
from tests.functional.client import wait_for
from tests.notifications import wrong


class Listener:
    """The notifications published since the creation of the listener, in order."""

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
        """Return the versioned notifications of a server; ``updates``: include instance.update and instance.exists."""
        return [message for message in self.versioned if message["payload"]["nova_object.data"].get("uuid") == uuid
                and (updates or message["event_type"] not in ("instance.update", "instance.exists"))]

    def types(self, uuid, **options):
        return [message["event_type"].removeprefix("instance.") for message in self.of(uuid, **options)]

    def wait(self, uuid, event_type, **values):
        """Wait for the first notification of this type with these values; return the data of its payload."""
        def match():
            return next((data for message in self.of(uuid, updates=True)
                         if message["event_type"] == f"instance.{event_type}"
                         and (data := message["payload"]["nova_object.data"])
                         and all(data[name] == value for name, value in values.items())), None)

        wait_for(match, 20, f"notification {event_type}")
        return match()


@contextlib.contextmanager
def listen(suite, **options):
    """Publish notifications with these [notifications] options; at the end, verify the schema of all of them."""
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
    errors = [error for message in listener.versioned if (error := wrong(message))]
    assert errors == [], errors
