"""os-certificates with [api]legacy, verified by OpenSSL, and the commands nova-manage certificates."""

import re
import subprocess

import pytest
from cryptography import x509

from nova.api import openapi, routes
from nova.api.legacy import routes as legacy_routes
from nova.cmd import manage
from nova.conf import CONF
from nova.db import audit, tables
from nova.objects.base import new_uuid
from tests.functional.client import Client, Failed
from tests.functional.refusals import NIL

OLD = "2.35"


@pytest.fixture
def project():
    return new_uuid().replace("-", "")


@pytest.fixture
def member(legacy_url, project):
    return Client(legacy_url, project=project, user="alice", roles="member,reader", version=OLD)


@pytest.fixture
def run(suite, capsys):
    """Return a function that runs nova-manage certificates and returns its exit code, output and errors."""
    def manage_certificates(*arguments):
        capsys.readouterr()
        code = manage.main(["certificates", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return manage_certificates


@pytest.fixture
def openssl(tmp_path):
    """Return a function that runs openssl with files of these contents: ``openssl("x509 -in {root}", root=PEM)``."""
    def openssl(command, **contents):
        paths = {name: tmp_path / f"{name}.pem" for name in contents}
        for name, path in paths.items():
            path.write_text(contents[name])
        ended = subprocess.run(["openssl", *(word.format(**paths) for word in command.split())], capture_output=True,
                               text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    return openssl


def create(client, body=None):
    return client.post("/os-certificates", {} if body is None else body)["certificate"]


def root_of(client):
    made = client.get("/os-certificates/root")["certificate"]
    assert made["private_key"] is None
    return made["data"]


def serial_of(made):
    return f"{x509.load_pem_x509_certificate(made['data'].encode()).serial_number:X}"


def refused(client, method, path, body=None, version=OLD):
    with pytest.raises(Failed) as failed:
        client.call(method, path, body, version=version)
    return failed.value.code, failed.value.message


def test_certificate_is_created_and_verified_by_openssl(member, openssl, project):
    assert refused(member, "GET", "/os-certificates/root") == (404, f"Project {project} has no root certificate.")
    made = create(member)
    assert made.keys() == {"private_key", "data"}
    root = root_of(member)
    chain = {"root": root, "leaf": made["data"]}
    assert openssl("verify -x509_strict -purpose sslclient -CAfile {root} {leaf}", **chain)[0] == 0
    assert openssl("verify -x509_strict -purpose sslserver -CAfile {root} {leaf}", **chain)[0] != 0
    assert openssl("x509 -in {leaf} -noout -subject -nameopt RFC2253", **chain)[1].strip() == (
        f"subject=CN=alice,OU={project},O=Nova")
    public = openssl("x509 -in {leaf} -noout -pubkey", **chain)
    assert openssl("pkey -in {key} -pubout", key=made["private_key"]) == public


def test_certificate_of_another_project_does_not_verify(legacy_url, member, openssl):
    create(member)
    theirs = create(Client(legacy_url, project=new_uuid(), roles="member,reader", version=OLD))
    assert openssl("verify -CAfile {root} {leaf}", root=root_of(member), leaf=theirs["data"])[0] != 0


def test_body_of_a_certificate_request_may_be_empty(member):
    response = member.session.post(f"{member.url}/v2.1/os-certificates", timeout=60)
    assert (response.status_code, "BEGIN CERTIFICATE" in response.text) == (200, True)
    response = member.session.post(f"{member.url}/v2/os-certificates", json={"name": "ignored"}, timeout=60)
    assert response.status_code == 200


@pytest.mark.parametrize("body", [
    {"project_id": "other"}, {"certificate": {"user_id": "root"}}, {"": 1}, [], "root", 1, [{}]])
def test_other_bodies_of_a_certificate_request_are_refused(member, suite, body):
    code, message = refused(member, "POST", "/os-certificates", body)
    assert (code, "certificates.py" in message) == (400, False)
    assert refused(member, "GET", "/os-certificates/root")[0] == 404, "a refused request created the root"


@pytest.mark.parametrize("name", ["ROOT", "1", NIL, "root%2F..", "%00", "roo%74%20"])
def test_only_the_root_certificate_can_be_shown(member, name):
    create(member)
    assert refused(member, "GET", f"/os-certificates/{name}") == (
        404, "Only the root certificate can be shown: os-certificates/root.")


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/os-certificates"), ("DELETE", "/os-certificates/root"), ("PUT", "/os-certificates/root")])
def test_other_methods_of_certificates_do_not_exist(member, method, path):
    assert refused(member, method, path, {})[0] in (404, 405)


def test_certificates_are_removed_from_the_api_by_default(admin):
    for method, path in (("POST", "/os-certificates"), ("GET", "/os-certificates/root")):
        assert refused(admin, method, path, {} if method == "POST" else None)[0] == 410


def test_reader_may_show_the_root_but_create_no_certificate(legacy_url, member, project):
    create(member)
    reader = Client(legacy_url, project=project, roles="reader", version=OLD)
    assert root_of(reader) == root_of(member)
    assert refused(reader, "POST", "/os-certificates", {})[0] == 403
    assert refused(member, "POST", "/os-certificates", {}, "2.36")[0] == 404


def test_user_with_an_id_that_no_certificate_can_contain_is_refused(legacy_url, project):
    client = Client(legacy_url, project=project, user="u" * 65, roles="member", version=OLD)
    code, message = refused(client, "POST", "/os-certificates", {})
    assert (code, "user id" in message) == (400, True)


def test_project_with_too_many_certificates_is_refused(member):
    CONF.set_override("max_per_project", 1, group="certificates")
    try:
        create(member)
        assert refused(member, "POST", "/os-certificates", {}) == (
            403, "Quota exceeded, the project has 1 valid certificates already, its limit. Certificates that expire or "
                 "are revoked no longer count.")
    finally:
        CONF.clear_override("max_per_project", group="certificates")


def test_certificate_responses_match_the_openapi_document(member):
    import jsonschema

    paths = openapi.document(legacy_routes.added_to(routes.ROUTES), 35, "")["paths"]
    for path, method, answer in (("/os-certificates", "post", {"certificate": create(member)}),
                                 ("/os-certificates/{id}", "get", member.get("/os-certificates/root"))):
        schema = paths[path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(schema).validate(answer)


# -- nova-manage ----------------------------------------------------------------------------------------
def test_revoked_certificate_is_refused_by_openssl(member, run, openssl, project):
    made, other = create(member), create(member)
    root = root_of(member)
    code, crl, _err = run("crl", "--project", project)
    assert code == 0
    check = "verify -x509_strict -crl_check -CAfile {root} -CRLfile {crl} {leaf}"
    assert openssl(check, root=root, crl=crl, leaf=made["data"])[0] == 0
    serial = serial_of(made)
    with_colons = ":".join(re.findall("..", serial.zfill(40)))
    assert run("revoke", "--project", project, "--serial", with_colons)[:2] == (0, "Revoked 1 certificates\n")
    assert run("revoke", "--project", project, "--serial", serial)[:2] == (1, "Revoked 0 certificates\n")
    crl = run("crl", "--project", project, "--days", "1")[1]
    code, output = openssl(check, root=root, crl=crl, leaf=made["data"])
    assert (code != 0, "certificate revoked" in output) == (True, True)
    assert openssl(check, root=root, crl=crl, leaf=other["data"])[0] == 0
    listed = run("list", "--project", project)[1]
    assert re.search(rf"{serial.lower().zfill(40)} +\| alice \| \S+ \| \S+ \| \S+ \|", listed)
    assert re.search(rf"{serial_of(other).lower().zfill(40)} +\| alice \| \S+ \| \S+ \| +\|", listed)
    assert serial not in run("list", "--project", project, "--user", "bob")[1].upper()


def test_certificates_are_revoked_by_user_and_by_project(legacy_url, member, run, project):
    bob = Client(legacy_url, project=project, user="bob", roles="member", version=OLD)
    for client in (member, member, bob):
        create(client)
    assert run("revoke", "--project", project, "--user", "bob")[:2] == (0, "Revoked 1 certificates\n")
    assert run("revoke", "--project", project, "--all")[:2] == (0, "Revoked 2 certificates\n")


def test_renewed_root_signs_new_certificates(member, run, openssl, project):
    old = create(member)
    first = root_of(member)
    code, second, _err = run("renew", "--project", project)
    assert (code, root_of(member)) == (0, second)
    new = create(member)
    assert openssl("verify -CAfile {root} {leaf}", root=second, leaf=old["data"])[0] != 0
    run("revoke", "--project", project, "--serial", serial_of(old))
    crls = run("crl", "--project", project)[1]
    check = "verify -crl_check -CAfile {root} -CRLfile {crl} {leaf}"
    assert openssl(check, root=first + second, crl=crls, leaf=new["data"])[0] == 0
    assert "certificate revoked" in openssl(check, root=first + second, crl=crls, leaf=old["data"])[1]


def test_project_gets_a_new_root_after_its_key_was_forgotten(member, project, capsys):
    create(member)
    first = root_of(member)
    assert manage.main(["db", "forget_secrets"]) == 0
    assert re.search(r"^Deleted the private keys of [1-9]\d* root certificates$", capsys.readouterr().out, re.MULTILINE)
    assert refused(member, "GET", "/os-certificates/root")[0] == 404
    create(member)
    assert root_of(member) != first


def test_commands_with_keys_refuse_to_run_without_the_key_file_of_conductors(run, project, tmp_path):
    assert run("renew", "--project", project)[0] == 0
    CONF.set_override("secret_key_file", f"{tmp_path}/other.keys", group="conductor")
    try:
        for command in ("renew", "crl"):
            code, out, err = run(command, "--project", project)
            assert (code, out, "the file does not exist" in err) == (4, "", True)
    finally:
        CONF.clear_override("secret_key_file", group="conductor")
    assert not (tmp_path / "other.keys").exists()


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("crl", "--project", "none"), 127, "Project none has no root certificate"),
    (("crl", "--project", "none", "--days", "0"), 127, "--days"),
    (("revoke", "--project", "none", "--serial", "xyz"), 127, "--serial xyz"),
    (("revoke", "--project", "none", "--serial", "1" * 41), 127, "--serial"),
    (("renew", "--project", "p" * 65), 127, "project id"),
])
def test_wrong_input_of_certificate_commands_is_reported(run, arguments, code, says):
    ended = run(*arguments)
    assert (ended[0], says in ended[2]) == (code, True)


def test_certificates_leave_the_database_consistent_and_contain_no_secret(member, suite):
    database = suite.conductor.core.db
    made = create(member)
    assert list(audit.audit(database)) == []
    with database.engine.connect() as connection:
        rows = repr([connection.execute(table.select()).all()
                     for table in (tables.certificates, tables.certificate_roots)])
    assert "PRIVATE" not in rows
    assert made["private_key"].splitlines()[1] not in rows
