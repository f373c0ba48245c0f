"""The status page in a real browser, with authentication by Keystone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.integration.allinone import start_allinone
from tests.integration.client import Client
from tests.integration.processes import eventually
from tests.integration.services.browser import complaints, start_browser
from tests.integration.services.keystone_server import KeystoneServer

TOKENS = {"an-admins": "admin,member,reader", "a-members": "member,reader"}
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def keystone() -> Iterator[KeystoneServer]:
    server = KeystoneServer(TOKENS, {"secret": "novas"})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def nova(tmp_path_factory: pytest.TempPathFactory, keystone: KeystoneServer) -> Iterator[Client]:
    base = tmp_path_factory.mktemp("nova")
    own = "".join(f"{name} = {value}\n" for name, value in keystone.options("secret").items())
    with start_allinone(base, f"auth_strategy = keystone\nstatus_page = true\n[keystone_authtoken]\n{own}") as running:
        _process, url, image_id = running
        client = Client(f"{url}/v2.1")
        client.sign_in("an-admins")
        client.image_id = image_id
        client.post("/flavors", {"flavor": {"name": "tiny", "id": "tiny", "vcpus": 1, "ram": 128, "disk": 1}})
        yield client


@pytest.fixture
def browser(tmp_path: pathlib.Path) -> Iterator[webdriver.Chrome]:
    with start_browser(tmp_path / "profile") as browser:
        yield browser


def text(browser: webdriver.Chrome, css: str) -> str:
    """Return the text of the first selected element, or "" without such an element, as tables are refilled all the
    time."""
    return str(browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css)).strip()


def enter(browser: webdriver.Chrome, token: str) -> None:
    browser.find_element(By.ID, "token").send_keys(token)
    browser.find_element(By.CSS_SELECTOR, "#enter button").click()


def test_status_page_shows_hosts_and_failures_to_admins_only(nova: Client, browser: webdriver.Chrome) -> None:
    nova.wait(nova.boot("good", networks="none"), "ACTIVE")
    nova.post("/flavors", {"flavor": {"name": "odd", "id": "odd", "vcpus": 1, "ram": 128, "disk": 1}})
    nova.post("/flavors/odd/os-extra_specs", {"extra_specs": {"resources:CUSTOM_NOWHERE": "1"}})
    nova.wait(nova.boot(HOSTILE, flavorRef="odd", networks="none"), "ERROR")
    browser.get(nova.url.replace("/v2.1", "/status"))
    eventually(lambda: text(browser, "#message") == "Enter a token.", 20, "the page prompts for a token")
    enter(browser, "a-members")
    eventually(lambda: "not allowed to see the status" in text(browser, "#message"), 20, "a member is refused")
    assert not browser.find_element(By.ID, "shown").is_displayed()
    complaints(browser)  # drops the messages of the two refusals
    enter(browser, "an-admins")
    eventually(lambda: HOSTILE in text(browser, "#failures tbody"), 20, "the failure is shown")
    assert "No valid host" in text(browser, "#failures tbody")
    assert text(browser, "#nodes tbody td:nth-child(2)") == "up"
    assert text(browser, "#nodes tbody td:nth-child(3)") == "1"
    assert not browser.find_element(By.ID, "enter").is_displayed()
    eventually(lambda: text(browser, "#boots-now").endswith("at most 1"), 20, "the boot is counted")
    assert browser.execute_script("return document.querySelectorAll('#boots rect.some').length") == 1
    assert "VCPU" in text(browser, "#legend")
    browser.set_window_size(390, 844)
    wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not browser.execute_script(wide), "the page does not fit a phone"
    assert browser.title == "Nova status"
    assert complaints(browser) == []


def test_status_page_refreshes_and_reports_an_unreachable_api(nova: Client, browser: webdriver.Chrome) -> None:
    browser.get(nova.url.replace("/v2.1", "/status"))
    eventually(lambda: text(browser, "#message") == "Enter a token.", 20, "the page prompts for a token")
    enter(browser, "an-admins")
    eventually(lambda: text(browser, "#nodes tbody td:nth-child(2)") == "up", 20, "the host is up")
    host = nova.get("/os-services?binary=nova-compute")["services"][0]
    nova.request("PUT", f"/os-services/{host['id']}", {"status": "disabled", "disabled_reason": "new disks"})
    eventually(lambda: text(browser, "#nodes tbody td:nth-child(2)") == "disabled: new disks", 20,
               "the page shows the disabled host")
    nova.request("PUT", f"/os-services/{host['id']}", {"status": "enabled"})
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions",
                            {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})
    eventually(lambda: "The values are outdated" in text(browser, "#message"), 20,
               "the page shows that its values are outdated")
