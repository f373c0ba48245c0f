"""Console proxies as processes: many idle consoles, and a real guest's screen in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from websockets.asyncio.client import ClientConnection, connect

from tests.integration.cluster import Cluster
from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.port_relay import InwardRelay
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, real_cloud
from tests.integration.services.browser import start_browser

IDLE = 1000  # maximum number of idle consoles of the test
MEBIBYTE = 1 << 20
# The consoles of a host in its own network are reachable at this address of the loopback interface.
ADDRESS = "127.59.0.1"
# Returns the share of pixels with the blue to which the test sets the terminal.
_BLUE = """
const canvas = document.querySelector('canvas');
if (!canvas || !canvas.width) { return 0; }
const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
let blue = 0;
for (let at = 0; at < data.length; at += 4) {
    blue += data[at] < 40 && data[at + 1] < 40 && data[at + 2] > 120;
}
return blue / (data.length / 4);
"""
# Types lines into the WebSocket of a serial port and returns the output once it contains a word.
_TYPE = """
const [url, lines, word, done] = arguments;
const socket = new WebSocket(url, ['binary']), decoder = new TextDecoder();
let heard = '';
socket.binaryType = 'arraybuffer';
socket.onopen = () => lines.forEach((line, number) => setTimeout(() => socket.send(line + '\\n'), 4000 * number));
socket.onclose = (event) => done(heard + ' closed: ' + event.code);
socket.onmessage = (event) => {
    heard += decoder.decode(event.data);
    if (heard.includes(word)) { socket.onclose = null; socket.close(); done(heard); }
};
"""
# Returns the share of light pixels: text on a dark screen.
_LIGHT = _BLUE.replace("data[at] < 40 && data[at + 1] < 40 && data[at + 2] > 120", "data[at] > 120")


def serial_options(port: int) -> dict[str, Any]:
    return {"serial_console": {"enabled": True, "serialproxy_host": "127.0.0.1", "serialproxy_port": port,
                               "base_url": f"ws://127.0.0.1:{port}/", "proxyclient_address": ADDRESS}}


def spice_options(port: int) -> dict[str, Any]:
    return {"spice": {"enabled": True, "html5proxy_host": "127.0.0.1", "html5proxy_port": port,
                      "html5proxy_base_url": f"http://127.0.0.1:{port}/spice_auto.html",
                      "server_listen": ADDRESS, "server_proxyclient_address": ADDRESS}}


def options(port: int, **more: str) -> dict[str, Any]:
    return {"vnc": {"enabled": True, "novncproxy_host": "127.0.0.1", "novncproxy_port": port,
                    "novncproxy_base_url": f"http://127.0.0.1:{port}/vnc_auto.html?autoconnect=true", **more}}


def url_of(api: Any, uuid: str, protocol: str = "vnc", console_type: str = "novnc") -> str:
    body = {"remote_console": {"protocol": protocol, "type": console_type}}
    return str(api.post(f"/servers/{uuid}/remote-consoles", body)["remote_console"]["url"])


# --- many ----------------------------------------------------------------------------------------------
@pytest.fixture
def idle(rabbitmq: Rabbit) -> Iterator[tuple[Cluster, int]]:
    port = free_port()
    settings = {**options(port), "console": {"connections_per_server": IDLE}}
    with Cluster(rabbitmq.new_vhost(), conductors=1, options=settings, proxies=["novncproxy"],
                 forked=False) as nova:
        yield nova, port


async def _open(url: str, count: int) -> list[ClientConnection]:
    """Open ``count`` idle consoles, twenty at a time."""
    turns, ready = asyncio.Semaphore(20), b"RFB 003.008\n\x01\x01"

    async def one() -> ClientConnection:
        async with turns:
            made = await connect(url, compression=None, open_timeout=60, proxy=None, max_queue=2)
            await made.send(b"RFB 003.008\n\x01\x01")
            heard = b""
            while len(heard) < len(ready) + 4 + 24:
                heard += await made.recv(decode=False)
            assert heard.startswith(ready)
            return made

    return await asyncio.gather(*(one() for _number in range(count)))


@pytest.mark.parametrize("count", [200, pytest.param(IDLE, marks=pytest.mark.slow)])
def test_console_proxy_holds_idle_consoles(idle: tuple[Cluster, int], count: int) -> None:
    """The proxy may use 150 MB of memory for a thousand idle consoles, and 0.1 MB for each."""
    nova, port = idle
    uuid = nova.api.boot("looked-at")
    nova.api.wait(uuid, "ACTIVE", 30)
    [token] = re.findall(r"%3D([0-9a-f-]{36})", url_of(nova.api, uuid))
    proxy = psutil.Process(nova.processes["novncproxy"].pid)

    async def look() -> tuple[float, int]:
        opened = await _open(f"ws://127.0.0.1:{port}/?token={token}", count)
        used, threads = proxy.memory_info().rss / MEBIBYTE, proxy.num_threads()
        for each in opened:
            each.transport.abort()
        return used, threads

    before = proxy.memory_info().rss / MEBIBYTE
    used, threads = asyncio.run(look())
    print(f"memory of a proxy: {before:.0f} MiB, with {count} idle consoles {used:.0f} MiB; {threads} threads")
    assert used < 150
    assert used - before < 0.1 * count
    assert threads < 40
    # Connections of closed consoles are removed.
    files = len(proxy.open_files())
    eventually(lambda: len(proxy.net_connections("tcp")) < 50, 60, f"all connections are closed ({files})")


# --- a browser -----------------------------------------------------------------------------------------
@pytest.fixture
def hosts() -> Iterator[RealHosts]:
    with real_hosts(1) as made:
        yield made


@needs_hosts
@pytest.mark.root
@pytest.mark.skipif(not all(pathlib.Path("/usr/share", pages).is_dir() for pages in ("novnc", "spice-html5")),
                    reason="Debian's novnc and spice-html5 are not installed")
def test_browser_shows_the_guest_screen_and_sends_keys(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path,
                                                       tmp_path: pathlib.Path) -> None:
    """The typed commands change the color of the terminal over VNC and SPICE, and print a line on the serial port."""
    port = free_port()
    inside = hosts.hosts[0].host.netns
    settings = {**options(port, server_listen=ADDRESS, server_proxyclient_address=ADDRESS),
                **spice_options(free_port()), **serial_options(free_port())}
    with contextlib.ExitStack() as stack:
        cloud = stack.enter_context(real_cloud(rabbitmq, hosts, guest_image, options=settings,
                                               proxies=["novncproxy", "spicehtml5proxy", "serialproxy"]))
        browser = stack.enter_context(start_browser(tmp_path))
        uuid = cloud.boot("screen", cloud.trio)
        cloud.api.wait(uuid, "ACTIVE", BOOT)
        url, terminal = url_of(cloud.api, uuid), url_of(cloud.api, uuid, "serial", "serial")
        spice = url_of(cloud.api, uuid, "spice", "spice-html5")
        for each in (url, spice, terminal):
            [token] = re.findall(r"(?:=|%3D)([0-9a-f-]{36})", each)
            console = cloud.api.get(f"/os-console-auth-tokens/{token}")["console"]
            stack.callback(InwardRelay(inside, console["host"], ADDRESS, console["port"]).close)
        cloud.wait_for_login(uuid, "screen")
        browser.get(url)
        eventually(lambda: browser.execute_script(_LIGHT) > 0, 60, "the screen shows the guest's text", interval=0.5)
        assert browser.execute_script(_BLUE) < 0.1
        keys = browser.find_element(By.TAG_NAME, "canvas")
        for text in ("nova", "novaguest", r"printf '\033[44m'; clear"):
            ActionChains(browser).click(keys).send_keys(text, Keys.ENTER).pause(3).perform()
        eventually(lambda: browser.execute_script(_BLUE) > 0.9, 60, "the screen is blue", interval=0.5)
        browser.get(spice)
        eventually(lambda: browser.execute_script(_BLUE) > 0.9, 60, "the screen is blue over SPICE", interval=0.5)
        keys = browser.find_element(By.TAG_NAME, "canvas")
        slowly = ActionChains(browser).click(keys).pause(1)
        for key in [*r"printf '\033[40m'; clear", Keys.ENTER]:
            slowly.send_keys(key).pause(0.2)  # the guest buffers only a few keys, and SPICE does not wait
        slowly.perform()
        eventually(lambda: browser.execute_script(_BLUE) < 0.1, 60, "the screen is dark again", interval=0.5)
        browser.set_script_timeout(60)
        heard = browser.execute_async_script(
            _TYPE, terminal, ["", "nova", "novaguest", "echo $((2100 * 2))1"], "42001")
        assert "42001" in heard, heard
        cloud.api.action(uuid, "os-stop")
        cloud.api.wait(uuid, "SHUTOFF", BOOT)
        eventually(lambda: not browser.find_elements(By.CSS_SELECTOR, "html.noVNC_connected"), 30,
                   "the page shows that the console is disconnected", interval=0.5)
        browser.get(url)
        eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "#noVNC_status.noVNC_status_error"), 30,
                   "the old URL is refused", interval=0.5)
