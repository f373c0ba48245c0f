"""Authentication methods of the client, its token cache, and API version negotiation."""

import json
import os
import pathlib
import stat

import pytest

from nova.api import auth
from nova.cli import client
from tests.functional.cli import keystone
from tests.functional.cli.conftest import run
from tests.functional.cli.keystone import PROJECT


@pytest.fixture
def remembered(tmp_path):
    """Return a function that lists the files of the token cache."""
    return lambda: sorted((tmp_path / "XDG_CACHE_HOME" / "nova").glob("*"))


def test_second_command_uses_the_cached_token(nova, identity, remembered):
    nova("list")
    nova("flavor-list")
    assert identity.logins == 1
    file, = remembered()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(file.parent).st_mode) == 0o700


def test_cached_tokens_are_separate_per_project(nova, identity, variables):
    nova("list")
    variables.setenv("OS_PROJECT_NAME", "other")
    nova("list")
    assert identity.logins == 2
    nova("--os-project-name", PROJECT, "list")
    assert identity.logins == 3


@pytest.mark.parametrize("off", [{"OS_CACHE": "0"}, {}])
def test_tokens_are_not_cached_if_disabled(nova, identity, variables, remembered, off):
    for name, value in off.items():
        variables.setenv(name, value)
    for _ in range(2):
        nova(*(() if off else ("--no-os-cache",)), "list")
    assert identity.logins == 2
    assert remembered() == []


def test_token_close_to_expiry_is_not_reused(nova, identity):
    identity.lifetime = 150
    nova("list")
    nova("list")
    assert identity.logins == 2


def test_revoked_token_is_replaced(nova, identity, remembered, monkeypatch):
    """Replace noauth, which accepts every token, by a strategy that refuses the token "revoked"."""
    nova("list")
    real = auth._noauth

    def refuse(environ, *rest):
        if environ.get("HTTP_X_AUTH_TOKEN") == "revoked":
            raise auth.Unauthorized()
        return real(environ, *rest)

    monkeypatch.setattr(auth, "_noauth", refuse)
    file, = remembered()
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "token": "revoked"}))
    nova("list")
    assert identity.logins == 2
    assert json.loads(file.read_text())["token"] == f"admin:{PROJECT}"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"colour": 1}'])
def test_damaged_cache_file_is_replaced(nova, identity, remembered, content):
    nova("list")
    file, = remembered()
    file.write_text(content)
    nova("list")
    assert identity.logins == 2


def test_cache_file_writable_by_other_users_is_ignored(nova, identity, remembered):
    nova("list")
    file, = remembered()
    file.chmod(0o666)
    nova("list")
    assert identity.logins == 2


def test_wrong_password_is_reported_without_the_password(nova, variables):
    variables.setenv("OS_PASSWORD", "wrong-one")
    ended = nova("list", code=4)
    assert "requires authentication" in ended.err
    assert "check the URL, the user, the project and the password" in ended.err
    assert "wrong-one" not in ended.err


def test_missing_credentials_are_reported_with_a_hint(variables, identity):
    for name in keystone.environment(identity):
        variables.delenv(name)
    ended = run("list")
    assert ended.code == 4
    assert "Source an openrc file" in ended.err


def test_unreachable_service_is_reported_with_its_url(nova, identity):
    identity.catalog["compute"] = "http://127.0.0.1:9/v2.1"
    ended = nova("list", code=4)
    assert "No answer from http://127.0.0.1:9/v2.1/" in ended.err


def test_catalog_without_a_compute_service_is_reported(nova, identity):
    identity.catalog.clear()
    assert "This cloud has no compute service" in nova("list", code=1).err


def test_clouds_yaml_is_supported(nova, identity, variables, tmp_path):
    said = keystone.environment(identity)
    for name in said:
        variables.delenv(name)
    variables.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "ours.yaml"))
    (tmp_path / "ours.yaml").write_text(json.dumps({"clouds": {"ours": {"region_name": "RegionOne", "auth": {
        name.removeprefix("OS_").lower(): said[name] for name in (
            "OS_AUTH_URL", "OS_USERNAME", "OS_PASSWORD", "OS_PROJECT_NAME", "OS_USER_DOMAIN_NAME",
            "OS_PROJECT_DOMAIN_NAME")}}}}))
    nova("--os-cloud", "ours", "list")
    variables.setenv("OS_CLOUD", "ours")
    nova("list")
    assert identity.logins == 2  # another cache key, so another login
    nova("list")
    assert identity.logins == 2
    assert "nowhere" in nova("--os-cloud", "nowhere", "list", code=4).err


@pytest.mark.parametrize("path", ["", "/v2.1", "/v2.1/", "/v2.1/{project}"])
def test_cloud_without_keystone_is_used_by_its_endpoint(suite, variables, identity, path):
    for name in keystone.environment(identity):
        variables.delenv(name)
    variables.setenv("OS_AUTH_TYPE", "none")
    variables.setenv("OS_ENDPOINT", suite.url + path.format(project="0" * 31 + "1"))
    for _ in range(2):
        ended = run("service-list", "-f", "json")
        assert ended.code == 0, ended.err
    variables.setenv("OS_AUTH_TYPE", "admin_token")
    variables.setenv("OS_TOKEN", "someone:" + "0" * 31 + "1")
    assert run("list").code == 0
    assert identity.logins == 0


# --- versions ----------------------------------------------------------------------------------------
def test_newest_common_microversion_is_used_by_default(nova, server, variables):
    def shown(*options):
        return nova(*options, "show", server[0], "-f", "json").document

    assert "pinned_availability_zone" in shown()
    assert "flavor" in shown("--os-compute-api-version", "2.1")
    variables.setenv("OS_COMPUTE_API_VERSION", "2.46")
    assert "flavor" in shown()
    assert "flavor:ram" in shown("--os-compute-api-version", "2.latest")


@pytest.mark.parametrize(("version", "code", "said"), [
    ("3.0", 2, "3.0 is not a version of the API: 2.1 to 2.104"),
    ("2.01", 2, "is not a version"),
    ("2.999", 1, "Choose a version that the server supports"),
])
def test_invalid_microversion_fails_with_the_supported_range(nova, version, code, said):
    assert said in nova("--os-compute-api-version", version, "list", code=code).err


def test_option_not_in_the_microversion_is_refused(nova, flavor):
    old = ("--os-compute-api-version", "2.40")
    ended = nova(*old, "boot", "--flavor", flavor, "--image", "tiny", "--tags", "a", "web", code=2)
    assert "--tags needs version 2.52 of the API, but 2.40 is selected" in ended.err
    assert "The command needs version 2.78 of the API" in nova(*old, "server-topology", "web", code=2).err


def test_cached_microversion_is_updated_after_an_upgrade(nova, remembered, monkeypatch):
    nova("list")
    file, = remembered()
    document = json.loads(pathlib.Path(file).read_text())
    file.write_text(json.dumps({**document, "newest": 999}))
    monkeypatch.setattr(client, "NEWEST", 999)
    nova("list")
    assert json.loads(file.read_text())["newest"] == 104


def test_debug_output_does_not_contain_the_token(nova):
    shown = nova("--debug", "list").err
    assert "GET call to" in shown or "REQ: curl" in shown
    assert "admin:admin" not in shown
