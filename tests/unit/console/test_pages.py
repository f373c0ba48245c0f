"""The web pages of a proxy: only files below its directory are served."""

import pytest

from nova.console import pages


@pytest.fixture
def web(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    web = tmp_path / "web"
    (web / "core").mkdir(parents=True)
    (web / "vnc.html").write_text("<p>screen</p>")
    (web / "vnc_auto.html").symlink_to("vnc.html")
    (web / "core" / "rfb.js").write_text("export {}")
    (web / "core" / "a b.css").write_text("p {}")
    (web / "out").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "website").mkdir()
    (tmp_path / "website" / "x.html").write_text("another directory with a name that begins alike")
    return str(web)


@pytest.mark.parametrize(("path", "kind", "content"), [
    ("/vnc.html", "text/html; charset=utf-8", b"<p>screen</p>"),
    ("/vnc_auto.html?path=%3Ftoken%3Dx", "text/html; charset=utf-8", b"<p>screen</p>"),
    ("/core/rfb.js", "text/javascript; charset=utf-8", b"export {}"),
    ("/core/a%20b.css", "text/css; charset=utf-8", b"p {}"),
])
def test_page_has_its_content_type_and_sends_no_referrer(web, path, kind, content):
    status, headers, body = pages.read(web, path)
    assert (status, body) == (200, content)
    assert headers["Content-Type"] == kind
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", [
    "/", "/core", "/core/", "/none.html", "/../secret.txt", "/%2e%2e/secret.txt", "/core/../../secret.txt", "/out",
    "/..%2fsecret.txt", "/%00", "/../website/x.html", "/" + "x" * 5000, "*", "", "http://[/"])
def test_other_paths_are_not_found(web, path):
    status, _headers, content = pages.read(web, path)
    assert (status, content) == (404, b"There is no such page.\n")


def test_path_with_leading_double_slash_is_refused(web):
    assert pages.read(web, "//evil.example/..")[0] == 400
