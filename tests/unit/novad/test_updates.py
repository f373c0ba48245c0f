"""Updates of novad: download, verification and switch of releases; a failed update changes nothing."""

import base64
import contextlib
import errno
import hashlib
import json
import shutil
import zipfile

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import nova
from nova.common.errors import Invalid, Refused
from nova.novad.deployment import deploy
from nova.novad.deployment.data import Data
from nova.novad.deployment.deploy import Deployer
from nova.novad.deployment.journal import Journal
from nova.novad.errors import Busy
from nova.novad.options import Options, load
from nova.novad.release import updates
from nova.novad.release.launcher import Releases, number
from nova.novad.release.updates import Updates
from nova.novad.secrets import Secrets
from tests.novad_wheels import wheel
from tests.unit.novad.platforms import parse
from tests.unit.novad.runtimes import FakeRuntime
from tests.unit.novad.test_deploy import REGISTRY, TEXT
from tools.novad_release import add, sign

NEXT = "0.9.1"


class Site:
    """A release site, and a novad that updates from the site."""

    def __init__(self, directory):
        self.place, self.data = directory / "site", directory / "data"
        self.data.mkdir()
        self.deployer = Deployer(parse(TEXT, "toml"), Journal(self.data / "journal.sqlite"), FakeRuntime(REGISTRY),
                                 Data(self.data), Secrets(self.data / "secrets"))
        self.restarts = []
        self.said = []
        self.key = directory / "key.pem"
        self.public = directory / "key.pub"
        self.new_key()

    def new_key(self, kind=ed25519.Ed25519PrivateKey.generate):
        key = kind()
        self.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                               serialization.NoEncryption()))
        self.public.write_bytes(key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))

    def release(self, version, days=90, **changed):
        add(self.place, [wheel(self.place, version, **changed)], self.key, days)

    def update(self, **options):
        options = Options(data_dir=str(self.data), **{
            "update_url": f"file://{self.place}", "update_key": str(self.public), **options})
        return Updates(options, self.deployer, lambda: self.restarts.append(1)).update(
            lambda _name, what: self.said.append(what))

    def index(self, change, signed=True):
        data = json.loads((self.place / "releases.json").read_text())
        change(data["releases"][0])
        (self.place / "releases.json").write_text(json.dumps(data))
        if signed:
            sign(self.place / "releases.json", self.key)

    def unchanged(self):
        """Check that the previous release is current and that no temporary files remain."""
        assert self.restarts == []
        assert not self.deployer.ending.is_set()
        assert Releases(self.data).current(nova.__version__) == ""
        assert list((self.data / "releases").glob("*")) == []
        assert list((self.data / "releases").glob(".*.new")) == []


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("NOVAD_SOCKET", "somewhere")
    return Site(tmp_path)


def test_update_starts_the_latest_release_on_trial(site):
    for version in ("0.9.1", "0.10", "0.2.7", nova.__version__):
        site.release(version)
    site.update()
    releases = Releases(site.data)
    assert (releases.current(nova.__version__), releases.trial(), site.restarts) == ("0.10", "0.10", [1])
    assert (releases.place / "0.10/nova/novad/daemon.py").exists()
    assert site.said[-1] == f"starting novad 0.10 in place of {nova.__version__}"
    with pytest.raises(Busy, match="is still on trial"):
        site.update()


@pytest.mark.parametrize(("version", "said"), [(nova.__version__, "is the latest"), ("0.0.9", "newer than the latest"),
                                               ("0.9rc1", "is the latest"), ("0.1.0.0", "is the latest")])
def test_update_ignores_releases_that_are_not_newer(site, version, said):
    site.release("0.0.1")
    site.index(lambda one: one.update(version=version))
    site.update()
    assert said in site.said[-1]
    site.unchanged()


@pytest.mark.parametrize("wrong", ["other key", "unsigned", "changed behind it", "no signature at all"])
def test_release_list_not_signed_with_update_key_is_refused(site, wrong):
    site.release(NEXT)
    if wrong == "other key":
        site.new_key()
    elif wrong == "unsigned":
        (site.place / "releases.json.sig").unlink()
    elif wrong == "changed behind it":
        site.index(lambda one: one.update(version="9.9"), signed=False)
    else:
        (site.place / "releases.json.sig").write_text("none!")
    with pytest.raises(Refused, match=r"(was not signed with update_key|json\.sig cannot be fetched).*Nothing"):
        site.update()
    site.unchanged()


@pytest.mark.parametrize("url", ["https://releases.example.org/x", "http://127.0.0.1:9/x", "file:///nowhere"])
def test_update_url_without_a_key_is_refused(url, tmp_path):
    (tmp_path / "novad.toml").write_text(f'update_url = "{url}"')
    with pytest.raises(Invalid, match=r"novad.toml: update_key: required with update_url"):
        load(tmp_path / "novad.toml")


def test_expired_release_list_is_refused_until_signed_again(site):
    site.release(NEXT, days=-0.01)
    with pytest.raises(Refused, match=r"releases.json expired at .* UTC on this node: sign it again. Nothing was"):
        site.update()
    site.unchanged()
    add(site.place, [], site.key)
    site.update()
    assert site.restarts == [1]


@pytest.mark.parametrize("expires", [None, "2199-01-01T00:00:00", "soon", 7258118400])
def test_release_list_without_expiry_is_refused(site, expires):
    """A list signed by an old release may lack an expiry."""
    site.release(NEXT)
    data = json.loads((site.place / "releases.json").read_text())
    data = {"releases": data["releases"], **({} if expires is None else {"expires": expires})}
    (site.place / "releases.json").write_text(json.dumps(data))
    sign(site.place / "releases.json", site.key)
    with pytest.raises(Refused, match=r"is not a list of releases: .*expires.*Nothing was changed"):
        site.update()
    site.unchanged()


def test_unreadable_or_wrong_type_update_key_is_refused(site):
    site.release(NEXT)
    with pytest.raises(Refused, match=r"update_key: /nowhere cannot be read"):
        site.update(update_key="/nowhere")
    site.new_key(lambda: ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(Refused, match="is not an Ed25519 key"):
        site.update()


@pytest.mark.parametrize(("change", "said"), [
    ({"sha256": "0" * 64}, "does not have the checksum"), ({"size": 100}, "larger than the allowed"),
    ({"file": "other.whl"}, "cannot be fetched"), ({"file": "../../etc/passwd.whl"}, "not a list of releases.*file"),
    ({"file": "/etc/passwd"}, "not a list of releases"), ({"sha256": "x"}, "not a list of releases.*sha256"),
    ({"size": 0}, "not a list of releases.*size"), ({"size": 10**9}, "needs up to")])
def test_wheel_that_does_not_match_the_release_list_is_refused(site, change, said):
    site.release(NEXT)
    site.index(lambda one: one["wheels"][0].update(change))
    with pytest.raises(Refused, match=f"(?s){said}.*Nothing was changed"):
        site.update()
    site.unchanged()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"releases": 1}', '{"releases": [{}]}', "\xff"])
def test_malformed_release_list_is_refused(site, text):
    site.place.mkdir()
    (site.place / "releases.json").write_text(text, encoding="latin-1")
    sign(site.place / "releases.json", site.key)
    with pytest.raises(Refused, match="is not a list of releases"):
        site.update()


@pytest.mark.parametrize("url", ["file:///nowhere", "http://127.0.0.1:9/x"])
def test_unreachable_update_url_is_reported(site, url):
    with pytest.raises(Refused, match=r"cannot be fetched.*Nothing was changed"):
        site.update(update_url=url)
    assert site.restarts == []


def evil(site, name, content="x", mode=0o644):
    path = site.place / f"nova-{NEXT}-py3-none-any.whl"
    site.place.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, content)
    add(site.place, [path], site.key)


@pytest.mark.parametrize(("name", "mode"), [("../../escaped", 0o644), ("/tmp/escaped", 0o644), ("link", 0o120777)])
def test_wheel_with_a_path_outside_of_its_directory_is_refused(site, name, mode):
    evil(site, name, mode=mode)
    with pytest.raises(Refused, match="a path outside of the wheel"):
        site.update()
    site.unchanged()


def test_malformed_wheel_is_refused(site):
    site.place.mkdir()
    path = site.place / f"nova-{NEXT}-py3-none-any.whl"
    path.write_bytes(b"no zip")
    add(site.place, [path], site.key)
    with pytest.raises(Refused, match="is not a wheel"):
        site.update()
    site.unchanged()


@pytest.mark.parametrize("changed", [{"__init__.py": (nova.__version__, "7.7")},
                                     {"cmd/novad.py": ("import argparse", "import no_such_module")}])
def test_release_with_wrong_version_or_import_error_is_refused(site, changed):
    site.release(NEXT, changed=changed)
    with pytest.raises(Refused, match=r"(?s)cannot be used; its version command printed: .*(7.7|no_such_module)"):
        site.update()
    site.unchanged()


def test_release_without_enough_disk_space_is_refused_before_download(site, monkeypatch):
    site.release(NEXT)
    usage = shutil.disk_usage(site.data)
    monkeypatch.setattr(updates.shutil, "disk_usage", lambda _path: usage._replace(free=updates._MARGIN + 1000))
    monkeypatch.setattr(Updates, "_wheel", None)
    with pytest.raises(Refused, match=r"free in .*Nothing was changed"):
        site.update()
    site.unchanged()


def test_update_during_a_deployment_is_refused(site):
    site.release(NEXT)
    with site.deployer.changing(deploy.DEPLOY), pytest.raises(Busy, match="in progress"):
        site.update()
    site.deployer.journal.begin(deploy.DEPLOY, deploy.FETCH, [])
    with pytest.raises(Busy, match="rollback of an earlier deployment is not finished"):
        site.update()
    assert site.restarts == []


def test_update_without_update_url_or_launcher_is_refused(site, monkeypatch):
    with pytest.raises(Refused, match="update_url is not set"):
        site.update(update_url="")
    site.release(NEXT)
    monkeypatch.delenv("NOVAD_SOCKET")
    with pytest.raises(Refused, match="restart novad"):
        site.update()


# --- selection of the current release -------------------------------------------------------------------
@pytest.fixture
def releases(tmp_path):
    made = Releases(tmp_path)
    for version in ("1.1", "1.2", "1.3"):
        (made.place / version).mkdir(parents=True)
    return made


def test_healthy_release_stays_current_and_its_predecessor_is_retained(releases):
    releases.begin("1.1", "")
    releases.succeeded()
    assert (releases.current("1.0"), releases.trial(), releases.failure()) == ("1.1", "", ("", ""))
    for version in ("1.2", "1.3"):
        (releases.place / version).mkdir()
    releases.begin("1.3", "1.1")
    assert (releases.current("1.0"), releases.trial()) == ("1.3", "1.3")
    releases.succeeded()
    assert sorted(path.name for path in releases.place.iterdir()) == ["1.1", "1.3", "current"]


@pytest.mark.parametrize("before", ["", "1.1"])
def test_failed_release_is_replaced_by_its_predecessor(releases, before):
    if before:
        releases.begin(before, "")
        releases.succeeded()
    else:
        releases.begin("1.3", "")
        releases.failed("first")
    (releases.place / "1.2").mkdir(exist_ok=True)
    releases.begin("1.2", before)
    releases.failed("it ended with 1")
    assert (releases.current("1.0"), releases.trial()) == (before, "")
    assert releases.failure() == ("1.2", "it ended with 1")


def test_failed_release_is_replaced_on_a_full_disk(releases, monkeypatch):
    def full(*_arguments, **_more):
        raise OSError(errno.ENOSPC, "No space left on device")
    releases.begin("1.1", "")
    releases.succeeded()
    (releases.place / "1.2").mkdir()
    releases.begin("1.2", "1.1")
    monkeypatch.setattr("nova.common.files.replace", full)
    releases.failed("it ended with 1")
    assert (releases.current("1.0"), releases.trial()) == ("1.1", "")


def test_installed_version_runs_if_newer_or_if_the_release_is_missing(releases):
    assert releases.current("1.0") == ""
    releases.begin("1.2", "")
    releases.succeeded()
    assert [releases.current(installed) for installed in ("1.1.9", "1.2", "1.10")] == ["1.2", "", ""]
    shutil.rmtree(releases.place / "1.2")
    assert releases.current("1.0") == ""


@pytest.mark.parametrize("step", range(1, 12))
@pytest.mark.parametrize("act", ["begin", "succeeded", "failed"])
def test_release_switch_killed_at_any_step_leaves_a_valid_release(releases, monkeypatch, act, step):
    """novad is killed before the step-th effect on the disk."""
    releases.begin("1.1", "")
    releases.succeeded()
    (releases.place / "1.2").mkdir(exist_ok=True)
    if act != "begin":
        releases.begin("1.2", "1.1")
    left = [step]

    class Killed(BaseException):
        pass

    def dying(function):
        def wrapped(*args, **more):
            left[0] -= 1
            if left[0] <= 0:
                raise Killed
            return function(*args, **more)
        return wrapped

    with monkeypatch.context() as patch:
        for name in ("replace", "symlink_to", "unlink"):
            patch.setattr(type(releases.place), name, dying(getattr(type(releases.place), name)))
        with contextlib.suppress(Killed):
            {"begin": lambda: releases.begin("1.2", "1.1"), "succeeded": releases.succeeded,
             "failed": lambda: releases.failed("sick")}[act]()
    runs = releases.current("1.0")
    assert runs in ("1.1", "1.2")
    assert (releases.place / runs).is_dir()
    # A release on trial is not treated as a healthy release.
    assert releases.trial() == runs or runs == "1.1" or act == "succeeded"
    releases.begin("1.2", runs if runs != "1.2" else "1.1")
    releases.failed("again")
    assert releases.current("1.0") == "1.1"


@pytest.mark.parametrize("version", ["", "1.", "a", "1.2rc1", "../1", "1.2.3.4.5", "1234567", "-1"])
def test_invalid_release_version_raises_value_error(version):
    with pytest.raises(ValueError, match="not a version of a release"):
        number(version)


def test_release_versions_are_compared_numerically():
    assert sorted(["1.10", "1.9.1", "1.9", "2", "0.1.0"], key=number) == ["0.1.0", "1.9", "1.9.1", "1.10", "2"]
    assert number("1.0") == number("1")


def test_release_tool_signs_the_list(site):
    site.release(NEXT)
    sign(site.place / "releases.json", site.key)
    key = serialization.load_pem_public_key(site.public.read_bytes())
    key.verify(base64.b64decode((site.place / "releases.json.sig").read_bytes()),
               (site.place / "releases.json").read_bytes())
    found = json.loads((site.place / "releases.json").read_text())["releases"][0]["wheels"][0]
    assert found["sha256"] == hashlib.sha256((site.place / found["file"]).read_bytes()).hexdigest()
