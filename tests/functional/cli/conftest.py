"""Tests of the client against the suite over HTTP, with a minimal Keystone for logins."""

import contextlib
import dataclasses
import io
import json

import pytest

from nova.cli.main import main
from tests.functional.cli import keystone
from tests.functional.client import Client, wait_for


@dataclasses.dataclass
class Ended:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)

    @property
    def rows(self):
        """Return the rows of a table as lists of cells."""
        lines = [line for line in self.out.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


class Failure(Exception):
    """An unexpected exit code of a command."""


@pytest.fixture
def identity(suite):
    with keystone.running(compute=f"{suite.url}/v2.1") as running:
        yield running


@pytest.fixture
def variables(identity, tmp_path, monkeypatch):
    """Set the environment of an openrc file and a temporary home directory."""
    for name, value in keystone.environment(identity).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def run(*words):
    """Run a command in this process; return its output and exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
    return Ended(code, out.getvalue(), err.getvalue())


@pytest.fixture
def nova(variables):
    """Return a function that runs a command: ``nova("list")``. It fails if the exit code is not ``code``."""
    def nova(*words, code=0):
        ended = run(*words)
        if ended.code != code:
            raise Failure(f"{words}: {ended.code}\n{ended.out}\n{ended.err}")
        return ended

    return nova


@pytest.fixture
def project(suite):
    """Return an API client of the tests for the project of the user."""
    return Client(suite.url, project=keystone.PROJECT, user="admin")


@pytest.fixture
def server(nova, project, flavor, image_id):
    """Return (name, id) of an active server."""
    uuid = project.boot(flavor, image_id, name="web")
    project.wait(uuid, "ACTIVE")
    return "web", uuid


@pytest.fixture
def settled(project):
    """Return a function that waits for a status without a task: ``settled(uuid, "SHUTOFF")``."""
    def settled(uuid, status):
        return wait_for(lambda: (found := project.server(uuid))["status"] == status
                        and found["OS-EXT-STS:task_state"] is None and found, 20, status)

    return settled
