"""The client against the suite, over HTTP; who logs in does so at a Keystone of a few lines."""

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
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)

    @property
    def rows(self):
        """The rows of a table, as lists of words."""
        lines = [line for line in self.out.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


class Failure(Exception):
    """It did not end with 0."""


@pytest.fixture
def identity(suite):
    with keystone.running(compute=f"{suite.url}/v2.1") as running:
        yield running


@pytest.fixture
def variables(identity, tmp_path, monkeypatch):
    """The environment of an openrc file, and a home of its own."""
    for name, value in keystone.environment(identity).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def run(*words):
    """A command in this process, as the shell would start it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
    return Ended(code, out.getvalue(), err.getvalue())


@pytest.fixture
def nova(variables):
    """``nova("list")``: what came of it; fails unless it ended with ``code``."""
    def nova(*words, code=0):
        ended = run(*words)
        if ended.code != code:
            raise Failure(f"{words}: {ended.code}\n{ended.out}\n{ended.err}")
        return ended

    return nova


@pytest.fixture
def project(suite):
    """The project of the client's user, over the tests' own client."""
    return Client(suite.url, project=keystone.PROJECT, user="admin")


@pytest.fixture
def server(nova, project, flavor, image_id):
    """(name, id) of a server that runs."""
    uuid = project.boot(flavor, image_id, name="web")
    project.wait(uuid, "ACTIVE")
    return "web", uuid


@pytest.fixture
def settled(project):
    """``settled(uuid, "SHUTOFF")``: the server, once it is in this status and nothing is done with it."""
    def settled(uuid, status):
        return wait_for(lambda: (found := project.server(uuid))["status"] == status
                        and found["OS-EXT-STS:task_state"] is None and found, 20, status)

    return settled
