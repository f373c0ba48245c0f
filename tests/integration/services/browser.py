"""Debian's headless Chromium, for tests of web pages."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = "chromium", "chromedriver"


@contextlib.contextmanager
def start_browser(profile: pathlib.Path) -> Iterator[webdriver.Chrome]:
    """Start a browser with a fresh profile, or skip the test if the browser is not installed.

    The browser resolves no names, so it connects only to addresses of this machine.
    """
    chromium, driver = shutil.which(CHROMIUM), shutil.which(DRIVER)
    if not (chromium and driver):
        pytest.skip("Debian's chromium and chromium-driver are not installed")
    options = Options()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--window-size=1400,1000",
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_page_load_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()


def complaints(browser: webdriver.Chrome) -> list[str]:
    """Return the errors of scripts and policies of the pages since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
