"""The serial console as tempest's test of it means it: text. Its own WebSocket takes bytes and knows short frames only,
so that the test could pass nowhere."""

import importlib
import types


class TextSocket:
    """What the test does with a WebSocket."""

    def __init__(self, socket):
        self.socket = socket

    def send_frame(self, text):
        self.socket.send_frame(text.encode())

    def receive_frame(self):
        """The text of the next frame that has any. Raises ConnectionError at the end."""
        length = 0
        while not length:
            length = self._read(2)[1] & 127
            if length > 125:
                length = int.from_bytes(self._read(2 if length == 126 else 8))
        return self._read(length).decode("latin-1")

    def close(self):
        self.socket.close()

    def _read(self, size):
        found = b""
        while len(found) < size:
            more = self.socket._recv(size - len(found))
            if not more:
                raise ConnectionError("The console was closed")
            found += more
        return found


def install():
    """The tests of live migration, and no others, get such sockets."""
    tests = importlib.import_module("tempest.api.compute.admin.test_live_migration")
    tests.LiveMigrationRemoteConsolesV26Test.block_migration = None  # its neighbours have it: as the configuration says
    connect = tests.compute.create_websocket
    tests.compute = types.SimpleNamespace(**{
        **vars(tests.compute), "create_websocket": lambda url: TextSocket(connect(url))})
