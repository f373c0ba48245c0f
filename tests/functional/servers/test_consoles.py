"""VNC, SPICE and serial consoles: URLs, tokens, proxies and refused connections."""

import contextlib
import datetime
import io
import logging
import socket

import pytest
import requests
import sqlalchemy as sa
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from nova import bus, context
from nova.conf import CONF
from nova.db import tables
from nova.db.servers import consoles
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.console import ConsoleAddress, digest
from nova.rpcapi.compute import Compute
from tests.functional.client import Client, Failed, wait_for
from tests.functional.consoles import Screen, ended, is_closed, linked, opened, status_of, token_of
from tests.functional.services.test_secrets import everything
from tests.functional.several_hosts import refused

TOKENS = tables.console_tokens


@pytest.fixture
def port(suite):
    number = suite.consoles["nova-novncproxy"].port
    CONF.set_override("novncproxy_base_url", f"http://127.0.0.1:{number}/vnc_auto.html", group="vnc")
    yield number
    CONF.clear_override("novncproxy_base_url", group="vnc")


@pytest.fixture
def server(port, member, flavor, image_id):
    uuid = member.boot(flavor, image_id)
    member.wait(uuid, "ACTIVE")
    return uuid


def url_of(client, uuid, protocol="vnc", console_type="novnc", **options):
    asked = {"remote_console": {"protocol": protocol, "type": console_type}}
    return client.post(f"/servers/{uuid}/remote-consoles", asked, **options)["remote_console"]["url"]


def token(client, uuid):
    return token_of(url_of(client, uuid))


def token_if_open(client, uuid):
    with contextlib.suppress(Failed):
        return token(client, uuid)
    return None


def rows(suite):
    return suite.conductor.core.db.read(lambda connection: connection.execute(sa.select(TOKENS)).all())


# --- VNC -----------------------------------------------------------------------------------------------
def test_vnc_console_url_connects_screen_and_keyboard_of_the_guest(member, port, server):
    url = url_of(member, server)
    assert url == f"http://127.0.0.1:{port}/vnc_auto.html?path=%3Ftoken%3D{token_of(url)}"
    with opened(port, token_of(url), origin=f"http://127.0.0.1:{port}", subprotocols=["binary"]) as websocket:
        assert websocket.subprotocol == "binary"
        screen = Screen(websocket)
        assert (screen.width, screen.height) == (64, 48)
        assert screen.ask() == 0x2040FF
        assert screen.press(0x00C0FFEE) == 0x00C0FFEE


def test_console_url_can_be_opened_twice(member, port, server):
    told = token(member, server)
    for _time in range(2):
        with opened(port, told) as websocket:
            Screen(websocket)


def test_get_vnc_console_action_until_microversion_2_5(member, port, server):
    answer = member.action(server, "os-getVNCConsole", {"type": "novnc"}, version="2.5")
    assert answer["console"]["type"] == "novnc"
    assert status_of(port, token_of(answer["console"]["url"])) == 101
    assert refused(lambda: member.action(server, "os-getVNCConsole", {"type": "novnc"}, version="2.6"))[0] == 404


def test_console_url_keeps_path_and_query_of_the_configured_base_url(member, server):
    CONF.set_override("novncproxy_base_url", "https://there/vnc.html?path=websockify&autoconnect=1", group="vnc")
    url = url_of(member, server)
    assert url == (f"https://there/vnc.html?path=websockify%3Ftoken%3D{token_of(url)}&autoconnect=1")


def test_console_token_is_accepted_from_a_cookie(member, port, server):
    from websockets.sync.client import connect

    cookie = {"Cookie": f"token={token(member, server)}"}
    with connect(f"ws://127.0.0.1:{port}/", additional_headers=cookie, compression=None, proxy=None) as websocket:
        Screen(websocket)


def test_proxy_serves_static_pages_of_the_web_directory_only(port, tmp_path):
    with open(f"{CONF.state_path}/vnc_auto.html", "w") as file:
        file.write("<p>hello</p>")
    page = requests.get(f"http://127.0.0.1:{port}/vnc_auto.html?path=%3Ftoken%3Dx", timeout=10)
    assert (page.status_code, page.text) == (200, "<p>hello</p>")
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert requests.get(f"http://127.0.0.1:{port}/master.key/", timeout=10).status_code == 404
    assert requests.get(f"http://127.0.0.1:{port}/../../../../etc/passwd", timeout=10).status_code == 404


# --- SPICE ---------------------------------------------------------------------------------------------
@pytest.fixture
def spice(suite):
    number = suite.consoles["nova-spicehtml5proxy"].port
    CONF.set_override("html5proxy_base_url", f"http://127.0.0.1:{number}/spice_auto.html", group="spice")
    yield number
    CONF.clear_override("html5proxy_base_url", group="spice")


def test_spice_url_opens_a_websocket_per_channel(member, spice, server):
    url = url_of(member, server, "spice", "spice-html5")
    assert url == f"http://127.0.0.1:{spice}/spice_auto.html?token={token_of(url)}"
    with contextlib.ExitStack() as channels:
        for _channel in range(3):
            websocket = channels.enter_context(
                opened(spice, token_of(url), origin=f"http://127.0.0.1:{spice}", subprotocols=["binary"]))
            assert linked(websocket) == 0


def test_spice_token_is_accepted_from_a_cookie(member, spice, server):
    from websockets.sync.client import connect

    cookie = {"Cookie": f"token={token_of(url_of(member, server, 'spice', 'spice-html5'))}"}
    with connect(f"ws://127.0.0.1:{spice}/websockify", additional_headers=cookie, compression=None,
                 proxy=None) as websocket:
        assert linked(websocket) == 0


def test_get_spice_console_action_until_microversion_2_5(member, spice, server):
    answer = member.action(server, "os-getSPICEConsole", {"type": "spice-html5"}, version="2.5")
    assert answer["console"]["type"] == "spice-html5"
    assert status_of(spice, token_of(answer["console"]["url"])) == 101
    assert refused(lambda: member.action(
        server, "os-getSPICEConsole", {"type": "spice-html5"}, version="2.6"))[0] == 404


def test_spice_direct_token_shows_host_and_tls_port_from_2_99(suite, admin, member, spice, server, monkeypatch):
    assert refused(lambda: url_of(member, server, "spice", "spice-direct", version="2.98"))[0] == 400
    driver = suite.compute.machine.driver
    monkeypatch.setattr(driver.consoles, "address",
                        lambda uuid, protocol: ConsoleAddress(host="10.0.0.9", port=0, tls_port=5901))
    url = url_of(member, server, "spice", "spice-direct", version="2.99")
    assert url == f"http://127.0.0.1:13002/nova?token={token_of(url)}"
    told = {"instance_uuid": server, "host": "10.0.0.9", "port": 0, "internal_access_path": None}
    path = f"/os-console-auth-tokens/{token_of(url)}"
    assert admin.get(path, version="2.99")["console"] == {**told, "tls_port": 5901}
    assert admin.get(path, version="2.98")["console"] == told
    assert status_of(spice, token_of(url)) == 403, "the HTML5 proxy accepted a spice-direct token"
    assert refused(lambda: url_of(member, server, "spice", "spice-html5")) == (
        400, "Unavailable console type spice-html5."), "the HTML5 proxy has no TLS to hosts"


# --- serial ports --------------------------------------------------------------------------------------
@pytest.fixture
def serial(suite):
    number = suite.consoles["nova-serialproxy"].port
    CONF.set_override("base_url", f"ws://127.0.0.1:{number}/", group="serial_console")
    yield number
    CONF.clear_override("base_url", group="serial_console")


def heard(websocket, until):
    text = b""
    while not text.endswith(until):
        text += websocket.recv(timeout=10)
    return text


def test_serial_console_url_opens_the_serial_port_of_the_guest(member, serial, server):
    url = url_of(member, server, "serial", "serial")
    assert url == f"ws://127.0.0.1:{serial}/?token={token_of(url)}"
    with opened(serial, token_of(url), origin=f"http://127.0.0.1:{serial}") as websocket:
        prompt = heard(websocket, b"login: ")
        websocket.send(b"who is th")
        websocket.send("ere\n")  # some terminals send text frames
        assert heard(websocket, b"\r\n") == prompt.split()[0] + b" heard who is there\r\n"


def test_new_serial_connection_closes_the_previous_connection(member, serial, server):
    told = token_of(url_of(member, server, "serial", "novnc"))
    with opened(serial, told) as first:
        heard(first, b"login: ")
        with opened(serial, told) as second:
            heard(second, b"login: ")
            assert ended(first) == (1008, "The console was opened elsewhere.")
            second.send(b"here\n")
            assert heard(second, b"\r\n").endswith(b"heard here\r\n")


def test_get_serial_console_action_at_microversion_2_5(member, serial, server):
    answer = member.action(server, "os-getSerialConsole", {"type": "serial"}, version="2.5")
    assert answer["console"]["type"] == "serial"
    assert status_of(serial, token_of(answer["console"]["url"])) == 101


def test_proxy_accepts_tokens_of_its_own_console_type_only(member, port, spice, serial, server):
    tokens = {port: token(member, server), spice: token_of(url_of(member, server, "spice", "spice-html5")),
              serial: token_of(url_of(member, server, "serial", "serial"))}
    for proxy in tokens:
        assert [status_of(proxy, told) for told in tokens.values()] == [101 if own == proxy else 403 for own in tokens]


# --- MKS -----------------------------------------------------------------------------------------------
def test_mks_token_shows_the_ticket_of_the_guest(suite, admin, member, server, monkeypatch):
    address = ConsoleAddress(host="esx1", port=902, access_path='{"ticket": "t"}')
    monkeypatch.setattr(suite.compute.machine.driver.consoles, "address", lambda uuid, protocol: address)
    CONF.set_override("enabled", True, group="mks")
    try:
        url = url_of(member, server, "mks", "webmks")
    finally:
        CONF.clear_override("enabled", group="mks")
    assert url == f"http://127.0.0.1:6090/?token={token_of(url)}"
    shown = admin.get(f"/os-console-auth-tokens/{token_of(url)}", version="2.31")["console"]
    assert shown == {"instance_uuid": server, "host": "esx1", "port": 902, "internal_access_path": '{"ticket": "t"}'}


# --- invalid requests ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("protocol", "console_type", "message"), [
    ("vnc", "serial", "Invalid console type serial"),
    ("vnc", "xvpvnc", "Invalid console type xvpvnc"),
    ("spice", "novnc", "Invalid console type novnc"),
    ("vnc", "spice-html5", "Invalid console type spice-html5"),
    ("rdp", "rdp-html5", "Unavailable console type rdp."),
    ("mks", "webmks", "Unavailable console type webmks."),
])
def test_invalid_or_unavailable_console_types_are_refused(member, server, protocol, console_type, message):
    assert refused(lambda: url_of(member, server, protocol, console_type)) == (400, message)


def test_get_rdp_console_action_is_refused_as_unavailable(member, server):
    assert refused(lambda: member.action(server, "os-getRDPConsole", {"type": "rdp-html5"}, version="2.5")) == (
        400, "Unavailable console type rdp.")


@pytest.mark.parametrize(("group", "protocol", "console_type", "action"), [
    ("vnc", "vnc", "novnc", "os-getVNCConsole"), ("spice", "spice", "spice-html5", "os-getSPICEConsole"),
    ("serial_console", "serial", "serial", "os-getSerialConsole")])
def test_console_type_disabled_on_the_host_is_refused(member, server, group, protocol, console_type, action):
    CONF.set_override("enabled", False, group=group)
    try:
        answer = (400, f"Unavailable console type {console_type}.")
        assert refused(lambda: url_of(member, server, protocol, console_type)) == answer
        assert refused(lambda: member.action(server, action, {"type": console_type}, version="2.1")) == answer
    finally:
        CONF.set_override("enabled", True, group=group)


def test_console_of_a_stopped_server_is_refused(member, server):
    member.action(server, "os-stop")
    member.wait(server, "SHUTOFF")
    assert refused(lambda: url_of(member, server)) == (409, f"Guest {server} is not running.")


def test_console_during_server_delete_is_refused(admin, server, hold):
    held = hold("guests.destroy")
    admin.delete(f"/servers/{server}")
    held.wait_until_begun()
    assert refused(lambda: url_of(admin, server))[0] == 409
    held.let_go()
    admin.wait_gone(server)


@pytest.mark.parametrize(("host", "port"), [("x" * 256, 1), ("", 1), ("a b", 1), ("h\0", 1), ("h", 65536), ("h", -1)])
def test_invalid_console_address_from_host_creates_no_token(suite, member, server, monkeypatch, host, port):
    before = rows(suite)
    monkeypatch.setattr(suite.compute.machine.driver.consoles, "address",
                        lambda *_asked: ConsoleAddress(host=host, port=port))
    assert refused(lambda: token(member, server)) == (503, "The reply to console cannot be decoded.")
    assert rows(suite) == before


def test_console_of_another_projects_server_is_not_found(suite, server):
    stranger = Client(suite.url, project="another", user="x", roles="member,reader")
    assert refused(lambda: url_of(stranger, server))[0] == 404


# --- tokens --------------------------------------------------------------------------------------------
def test_only_administrators_can_show_the_address_of_a_console_token(admin, member, server):
    url = url_of(member, server)
    path = f"/os-console-auth-tokens/{token_of(url)}"
    told = admin.get(path)["console"]
    assert (told["instance_uuid"], told["host"], told["internal_access_path"]) == (server, "127.0.0.1", None)
    assert set(told) == {"instance_uuid", "host", "internal_access_path", "port"}
    assert refused(lambda: member.get(path))[0] == 403
    assert refused(lambda: admin.get(path, version="2.30"))[0] == 400
    assert refused(lambda: admin.get(path, version="2.99", what="1"))[0] == 400
    assert refused(lambda: admin.get(f"/os-console-auth-tokens/{new_uuid()}"))[0] == 404


def test_console_token_is_not_stored_or_logged_in_plain_text(suite, admin, member, port, server):
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    # The test's own client logs the requests that it sends.
    handler.addFilter(lambda record: not record.name.startswith(("websockets.client", "urllib3")))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        told = token(member, server)
        with opened(port, told) as websocket:
            Screen(websocket)
        status_of(port, told, origin="http://evil.example")
        admin.get(f"/os-console-auth-tokens/{told}")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert told not in everything(suite)
    assert "os-console-auth-tokens/***" in log.getvalue()
    assert told not in log.getvalue()
    assert digest(told) in {row.digest for row in rows(suite)}


@pytest.mark.parametrize("bad", ["", "x", "0" * 36, "%00", "11111111-2222-4333-8444-555555555555"])
def test_invalid_console_tokens_are_refused(port, bad):
    assert status_of(port, bad) == 403


def test_refused_console_connection_has_an_empty_body(port):
    with pytest.raises(InvalidStatus) as refusal:
        opened(port, "x")
    response = refusal.value.response
    assert (response.status_code, response.reason_phrase, response.body) == (403, "The token is not valid.", b"")


def test_url_with_two_console_tokens_is_refused(member, port, server):
    told = token(member, server)
    assert status_of(port, f"{told}&token={told}") == 403


def test_expired_console_token_is_refused_and_deleted(suite, member, port, server):
    told = token(member, server)
    past = utcnow() - datetime.timedelta(seconds=1)
    suite.conductor.core.db.write(lambda connection: connection.execute(
        sa.update(TOKENS).where(TOKENS.c.digest == digest(told)).values(expires_at=past)))
    assert status_of(port, told) == 403
    assert suite.conductor.core.db.write(consoles.forget_expired) >= 1
    assert digest(told) not in {row.digest for row in rows(suite)}


def stopped_and_started(client, uuid):
    client.action(uuid, "os-stop")
    client.wait(uuid, "SHUTOFF")
    client.action(uuid, "os-start")


def rebuilt(client, uuid):
    client.action(uuid, "rebuild", {"imageRef": client.server(uuid)["image"]["id"]})


def suspended_and_resumed(client, uuid):
    client.action(uuid, "suspend")
    client.wait(uuid, "SUSPENDED")
    client.action(uuid, "resume")


def rescued_and_unrescued(client, uuid):
    client.action(uuid, "rescue")
    client.wait(uuid, "RESCUE")
    client.action(uuid, "unrescue")


@pytest.mark.parametrize("change", [stopped_and_started, rebuilt, suspended_and_resumed, rescued_and_unrescued])
def test_console_token_is_invalid_after_the_guest_is_recreated(member, port, server, change):
    told = token(member, server)
    change(member, server)
    member.wait(server, "ACTIVE")
    assert status_of(port, told) == 403
    assert status_of(port, token(member, server)) == 101


def test_console_token_stays_valid_after_pause_and_hard_reboot(member, port, server):
    told = token(member, server)
    for action, value, status in (("pause", None, "PAUSED"), ("unpause", None, "ACTIVE"),
                                  ("reboot", {"type": "HARD"}, "ACTIVE")):
        member.action(server, action, value)
        member.wait(server, status)
        assert status_of(port, told) == 101


def test_console_token_is_invalid_after_server_delete(admin, member, port, server):
    told = token(member, server)
    member.delete(f"/servers/{server}")
    admin.wait_gone(server)
    assert status_of(port, told) == 403
    assert refused(lambda: admin.get(f"/os-console-auth-tokens/{told}"))[0] == 404


def test_live_migration_ends_console_tokens_and_connections(second, admin, member, port, server):
    told = token(member, server)
    with opened(port, told) as websocket:
        Screen(websocket)
        admin.action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
        admin.wait(server, "ACTIVE")
        assert ended(websocket)[0] in (1000, 1008)
    assert status_of(port, told) == 403
    # The API caches the list of hosts for a moment.
    with opened(port, wait_for(lambda: token_if_open(member, server))) as websocket:
        Screen(websocket)


def test_console_token_whose_port_belongs_to_another_guest_is_refused(suite, member, port, server, flavor, image_id):
    other = member.boot(flavor, image_id)
    member.wait(other, "ACTIVE")
    compute = bus.at(bus.client(suite.transport, Compute), suite.compute.host)
    theirs = compute.console(context.admin(), other, "novnc").port
    told = token(member, server)
    suite.conductor.core.db.write(lambda connection: connection.execute(
        sa.update(TOKENS).where(TOKENS.c.digest == digest(told)).values(port=theirs)))
    assert status_of(port, told) == 403


def test_oldest_console_tokens_of_a_user_above_the_limit_are_revoked(suite, admin, member, port, server):
    of_admin = token(admin, server)
    tokens = [token(member, server) for _number in range(consoles.MOST + 2)]
    assert len([row for row in rows(suite) if row.instance_uuid == server and row.user_id == "m"]) == consoles.MOST
    assert [status_of(port, told) for told in tokens[:3]] == [403, 403, 101]
    assert status_of(port, of_admin) == 101


# --- origins -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("origin", "headers", "status"), [
    (None, {}, 101),
    ("http://127.0.0.1:8080", {}, 101),
    ("http://evil.example", {}, 403),
    ("https://127.0.0.1", {}, 403),
    ("https://127.0.0.1", {"X-Forwarded-Proto": "http"}, 101),
    ("null", {}, 403),
    ("http://[", {}, 403),
    ("http://dashboard.example", {}, 101),
])
def test_console_connection_from_a_foreign_origin_is_refused(member, port, server, origin, headers, status):
    CONF.set_override("allowed_origins", ["Dashboard.example"], group="console")
    try:
        assert status_of(port, token(member, server), origin=origin, headers=headers) == status
    finally:
        CONF.clear_override("allowed_origins", group="console")


# --- open consoles -------------------------------------------------------------------------------------
def test_server_stop_closes_its_open_console(member, port, server):
    with opened(port, token(member, server)) as websocket:
        Screen(websocket)
        member.action(server, "os-stop")
        assert ended(websocket)[0] == 1000


def test_token_expiry_closes_console_only_with_enforce_session_timeout(suite, member, port, server):
    CONF.set_override("token_ttl", 2, group="consoleauth")
    try:
        with opened(port, token(member, server)) as websocket:
            screen = Screen(websocket)
            suite.conductor.core.db.write(lambda connection: connection.execute(sa.delete(TOKENS)))
            assert screen.ask() == 0x2040FF
        CONF.set_override("enforce_session_timeout", True, group="consoleauth")
        with opened(port, token(member, server)) as websocket:
            Screen(websocket)
            assert ended(websocket) == (1008, "The token has expired.")
    finally:
        CONF.clear_override("token_ttl", group="consoleauth")
        CONF.clear_override("enforce_session_timeout", group="consoleauth")


def test_server_stop_closes_console_whose_guest_socket_stays_open(member, port, server, monkeypatch):
    """The socket of the guest stays open, as on a host that lost its power."""
    monkeypatch.setattr("nova.virt.fake.consoles._Listener.close", lambda _listener: None)
    with opened(port, token(member, server)) as websocket:
        Screen(websocket)
        member.action(server, "os-stop")
        assert ended(websocket) == (1008, "The server was stopped, moved or deleted.")


def test_connections_without_token_are_limited_per_client(member, port, server):
    """Connections with a token and closed connections do not count."""
    told = token(member, server)
    with contextlib.ExitStack() as stack, opened(port, told) as websocket:
        screen = Screen(websocket)
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _number in range(65)]
        assert wait_for(lambda: [one for one in silent if is_closed(one)])
        with pytest.raises((OSError, EOFError, ConnectionClosed, InvalidHandshake)):
            opened(port, told)
        assert screen.ask() == 0x2040FF
        for one in silent[:10]:
            one.close()
        assert wait_for(lambda: can_open(port, told))


def can_open(port, told):
    try:
        return status_of(port, told) == 101
    except (OSError, EOFError, ConnectionClosed, InvalidHandshake):
        return False


def test_console_connections_per_server_are_limited(member, port, server):
    CONF.set_override("connections_per_server", 2, group="console")
    try:
        told = token(member, server)
        with opened(port, told) as first, opened(port, told) as second:
            Screen(first), Screen(second)
            with pytest.raises(InvalidStatus) as refused:
                opened(port, told)
            assert refused.value.response.status_code == 429
            assert refused.value.response.headers["Retry-After"] == "5"
        wait_for(lambda: status_of(port, told) == 101)
    finally:
        CONF.clear_override("connections_per_server", group="console")
