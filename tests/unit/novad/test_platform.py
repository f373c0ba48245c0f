"""Platform files; errors name the invalid field."""

import json
import os
import re

import pytest

from nova.common.errors import Invalid, NotKnown
from nova.novad.platform import Place, fill, in_order, load
from tests.paths import ROOT
from tests.unit.novad.platforms import parse

GOOD = """
name = "suite"
networks = ["inner"]
[secrets.db]
[components.db]
image = "registry:5000/db"
version = "1"
[components.api]
image = "registry/api"
channel = "stable"
depends = ["db"]
networks = ["inner"]
env = {URL = "db://${secret:db}@db"}
ports = [{container = 80, node = 8080}]
"""
X = 'name = "suite"\n[components.x]\nimage = "i"\n'


@pytest.mark.parametrize(("text", "said"), [
    ("name = ", "not valid TOML"),
    ('name = "suite"', "Object missing required field .components"),
    ('name = "suite"\n[components]', "components: at least one component is required"),
    (X.replace("suite", "The Suite"), "name: Expected"),
    (X.replace("components.x", "components.X"), "components: 'X' cannot be a name"),
    (X + "colour = 1", "components.x: .*`colour`"),
    (X + "version = 1", "components.x.version: Expected `str`"),
    (X + 'version = "a b"', "components.x.version: 'a b' is not"),
    (X + 'channel = "/"', "components.x.channel"),
    (X + 'version = "1"\nchannel = "stable"', "components.x.channel: set either"),
    (X + 'digest = "sha256:12"', "components.x.digest"),
    (X.replace('"i"', '""'), "components.x.image"),
    (X.replace('"i"', '"i:1"'), "components.x.image: .* separate fields"),
    (X.replace('"i"', '"host:5000/i@sha256:1"'), "components.x.image"),
    (X + "env = {A = 1}", "components.x.env.A: Expected `str`"),
    (X + 'env = {"A=B" = "1"}', "components.x.env: 'A=B'"),
    (X + 'env = {A = "${secret:none}"}', "components.x: secret 'none' does not exist"),
    (X + 'env = {A = "${secret:}"}', "components.x: secret '' does not exist"),
    (X + 'env = {A = "${secret:db"}', "components.x.env.A: write a secret as"),
    (X + 'files = {"/a" = "${secret:none}"}', "components.x: secret 'none' does not exist"),
    (X + 'files = {a = "text"}', "components.x.files: 'a' cannot be"),
    (X + 'command = ["a", "${secret:db}"]', "components.x.command: a secret here would show"),
    (X + 'health = {command = ["${secret:db}"]}', "components.x.health.command: a secret here would show"),
    (X + 'version_command = ["${secret:db}"]', "components.x.version_command: a secret here would show"),
    (X + "ports = [{container = 1, node = 70000}]", r"components.x.ports\[0\].node: Expected `int` <= 65535"),
    (X + 'ports = [{container = 1, node = 2, address = "here"}]', r"components.x.ports\[0\].address: 'here'"),
    (X + "ports = [{container = 1, node = 2}, {container = 3, node = 2}]", "components.x.ports: port 2"),
    (X + 'volumes = [{name = "a", destination = "a"}]', r"components.x.volumes\[0\].destination"),
    (X + 'volumes = [{name = "../a", destination = "/a"}]', r"components.x.volumes\[0\].name"),
    (X + 'volumes = [{name = "a", destination = "/a"}, {name = "b", destination = "/a"}]', "/a is mounted twice"),
    (X + 'volumes = [{name = "a", destination = "/a"}, {name = "a", destination = "/b"}]',
     "components.x.volumes: two volumes have"),
    (X + 'networks = ["inner"]', "components.x.networks: inner is not declared in the networks of the platform"),
    (X + 'depends = ["y"]', "components.x.depends: component y does not exist"),
    (X + 'depends = ["x"]', "components.x.depends: component x does not exist"),
    (X + 'data_of = ["y"]', "components.x.data_of: component y does not exist"),
    (X + 'health = {tcp = "a:1", http = "http://a"}', "components.x.health: set exactly one of"),
    (X + "health = {}", "components.x.health: set exactly one of"),
    (X + 'health = {tcp = "a:99999"}', "components.x.health.tcp"),
    (X + 'health = {http = "file:///etc/shadow"}', "components.x.health.http"),
    (X + "stop_timeout = -1", "components.x.stop_timeout"),
    (X + "[secrets.s]\nlength = 2", "secrets.s.length"),
    (X + '[secrets.s]\nalphabet = "aaa"', "secrets.s.alphabet: must have at least two"),
    (X + '[secrets.s]\nalphabet = "ab\\n"', "secrets.s.alphabet: must have at least two"),
    (X + 'env = {A = "x\\u0000y"}', "components.x.env: must not contain a NUL"),
    (X + 'health = {command = ["\\u0000"]}', "components.x.health: must not contain a NUL"),
    (X + 'dump = ["a"]', "components.x.dump: dump and restore must be"),
    (X + 'dump = ["a"]\nrestore = ["b"]', "components.x.dump: requires a volume"),
    (X + 'dump = ["${secret:db}"]\nrestore = ["b"]\nvolumes = [{name = "a", destination = "/a"}]',
     "components.x.dump: a secret here would show"),
    (X + "command = " + "[" * 5000 + "]" * 5000, "not valid TOML"),
    (X + 'depends = ["y"]\n[components.y]\nimage = "i"\ndepends = ["x"]', "components: circular dependency: "),
])
def test_invalid_platform_field_is_reported_by_name(text, said):
    with pytest.raises(Invalid, match=f"^the file: {said}" if not said.startswith(("/", "in ")) else said):
        parse(text, "toml", "the file")


def test_valid_platform_file_is_read_from_toml_and_yaml(tmp_path):
    platform = parse(GOOD, "toml")
    (tmp_path / "p.yaml").write_text("""
name: suite
networks: [inner]
secrets: {db: {}}
components:
  db: {image: "registry:5000/db", version: "1"}
  api:
    image: registry/api
    channel: stable
    depends: [db]
    networks: [inner]
    env: {URL: "db://${secret:db}@db"}
    ports: [{container: 80, node: 8080}]
""")
    (tmp_path / "p.toml").write_text(GOOD)
    assert load(tmp_path / "p.yaml") == load(tmp_path / "p.toml") == platform
    assert [platform.component(name).reference() for name in ("db", "api")] == ["registry:5000/db:1",
                                                                                "registry/api:stable"]
    assert fill(platform.component("api").env["URL"], {"db": "x"}) == "db://x@db"


@pytest.mark.parametrize("text", [
    "a: [", "- a", "1", "", "components: {1: {image: i}}", "when: 2020-99-99", "&a [*a]", "x: &x\n  <<: *x\n",
    "name: s\ncomponents: &a {x: *a}", "!!python/object/apply:os.system ['id']", "name: s\ncomponents: " + "[" * 3000,
    "name: s\ncomponents: {x: {image: i, stop_timeout: " + "9" * 5000 + "}}",
    "name: &a [x, x]\nnetworks: &b [*a, *a]\nsecrets: &c [*b, *b]\ncomponents: [*c, *c]"])
def test_invalid_yaml_platform_is_refused(text):
    with pytest.raises(Invalid, match=r"^the file: "):
        parse(text, "yaml", "the file")


def test_missing_platform_file_is_reported_by_name(tmp_path):
    with pytest.raises(Invalid, match=r"none\.toml cannot be read"):
        load(tmp_path / "none.toml")


def test_platform_file_overrides_its_base(tmp_path):
    (tmp_path / "base.toml").write_text(GOOD)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/middle.yaml").write_text("""
base: ../base.toml
secrets: {more: {}}
components:
  api: {env: {MORE: "${secret:more}"}, ports: []}
  extra: {image: registry/extra}
""")
    (tmp_path / "top.yaml").write_text("""
base: below/middle.yaml
name: other
components: {api: {channel: null, version: "2"}, extra: null}
""")
    top, base = load(tmp_path / "top.yaml"), parse(GOOD, "toml")
    assert (top.name, top.networks, list(top.components), sorted(top.secrets)) == (
        "other", ("inner",), ["db", "api"], ["db", "more"])
    assert top.component("db") == base.component("db")
    api = top.component("api")
    assert (api.reference(), api.ports, api.depends) == ("registry/api:2", (), ("db",))
    assert api.env == {"URL": "db://${secret:db}@db", "MORE": "${secret:more}"}


def test_removal_of_a_field_missing_in_the_base_is_accepted(tmp_path):
    (tmp_path / "base.yaml").write_text("name: s\ncomponents: {db: {image: registry/db}}")
    (tmp_path / "top.yaml").write_text("base: base.yaml\ncomponents: {db: {env: {X: null}, files: {/a: null}}}")
    assert load(tmp_path / "top.yaml") == load(tmp_path / "base.yaml")


def test_base_that_is_not_a_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("link")
    for name, said in (("fifo", "not a regular file"), (".", "not a regular file"), ("link", "cannot be read"),
                       ('"\\ud800"', "line 1, column 10")):
        (tmp_path / "top.yaml").write_text(f"base: {name}")
        with pytest.raises(Invalid, match=said):
            load(tmp_path / "top.yaml")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["address", "secret"])
def test_unclosed_placeholders_are_refused_in_linear_time(kind):
    with pytest.raises(Invalid, match=r"write an? "):
        parse(GOOD.replace("db://", f"${{{kind}:" * 60000), "toml")


@pytest.mark.parametrize(("top", "base", "said"), [
    ("base: none.yaml", "", "none.yaml cannot be read"), ("base: [a]", "", "top.yaml: base: must be the path"),
    ("base: ''", "", "top.yaml: base: must be the path"), ('base: "a\\0"', "", "top.yaml: base: must be the path"),
    ("base: top.yaml", "", "top.yaml: base: the file is its own base"),
    ("base: base.yaml", "base: top.yaml", "top.yaml: base: the file is its own base"),
    ("base: base.yaml", "a: [", "base.yaml: not valid YAML"),
    ("base: base.yaml", "- a", "top.yaml: .*Expected `object`|top.yaml: Object missing"),
    ("base: base.yaml\ncomponents: &a {x: *a}", "components: &a {x: *a}",
     "top.yaml: not valid YAML: line 2, column 20: the alias"),
    ("base: base.yaml\ncomponents: {x: {health: {tcp: 'a:1'}}}",
     "name: s\ncomponents: {x: {image: i, health: {http: 'http://a'}}}", "top.yaml: components.x.health: set exactly"),
])
def test_error_in_a_base_file_names_the_file(tmp_path, top, base, said):
    (tmp_path / "top.yaml").write_text(top)
    (tmp_path / "base.yaml").write_text(base)
    with pytest.raises(Invalid, match=said):
        load(tmp_path / "top.yaml")


@pytest.mark.parametrize("url", [
    "ftp://a", "http://", "http:///a", "http://[::1", "http://a]", "http://a:0", "http://a:65536", "http://a:b/",
    "http://a:", "http://a b", "http://a/ b", "http://a/\u00e4", "http://a/\r\nX: y", "http://a\tb"])
def test_invalid_url_of_a_health_check_is_refused(url):
    text = json.dumps({"name": "s", "components": {"a": {"image": "i", "health": {"http": url}}}})
    with pytest.raises(Invalid, match=r"components.a.health.http: .* is not a URL of http or https"):
        parse(text, "yaml")


def test_component_order_is_deterministic_and_follows_dependencies():
    text = 'name = "s"\n' + "".join(f'[components.{name}]\nimage = "i"\ndepends = {depends}\n' for name, depends in (
        ("a", '["b", "c"]'), ("b", '["d"]'), ("c", '["d"]'), ("d", "[]"), ("e", "[]")))
    order, again = (in_order({name: component.depends for name, component in parse(text, "toml").components.items()})
                    for _time in range(2))
    assert order == again
    assert order.index("d") < min(order.index("b"), order.index("c")) < order.index("a")


def test_part_of_a_node_contains_components_of_its_roles_and_unrestricted_ones():
    text = GOOD.replace('image = "registry:5000/db"', 'image = "registry/db"\nroles = ["control"]')
    platform = parse(text, "toml").part(Place(node="n", address="", roles=("compute",)))
    assert list(platform.components) == ["api"]
    assert platform.component("api").depends == ()
    with pytest.raises(NotKnown, match="Component db does not exist in platform suite, which has api"):
        platform.component("db")


def test_invalid_requested_version_is_refused():
    with pytest.raises(Invalid, match="'a b' is not a version"):
        parse(GOOD, "toml").component("db").of_version("a b")


def test_oversized_platform_file_is_refused(tmp_path):
    with open(tmp_path / "p.toml", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Invalid, match="has more than"):
        load(tmp_path / "p.toml")


@pytest.mark.parametrize("part", ["a", '"a"', "'a'", "a "])
def test_toml_key_with_too_many_parts_is_refused_with_its_line(part):
    """tomllib takes minutes to parse a line of 200 KB."""
    with pytest.raises(Invalid, match="not valid TOML: line 3: a key has more than 16 parts"):
        parse(f'name = "s"\n\n{".".join([part] * 100_000)} = 1', "toml")
    assert parse(X + 'env = {A = "' + "a." * 1000 + '"}', "toml").components["x"].env["A"] == "a." * 1000


@pytest.mark.parametrize(("field", "text"), [
    ("name", 'name: "p\\n"\ncomponents: {a: {image: r/x}}'),
    ("components", 'name: p\ncomponents: {"a\\n": {image: r/x}}'),
    ("components.a.version", 'name: p\ncomponents: {a: {image: r/x, version: "1\\n"}}'),
    ("components.a.digest", f'name: p\ncomponents: {{a: {{image: r/x, digest: "sha256:{"0" * 64}\\n"}}}}'),
    ("components.a.volumes[0].name",
     'name: p\ncomponents: {a: {image: r/x, volumes: [{name: "v\\n", destination: /d}]}}'),
    ("secrets", 'name: p\nsecrets: {"s\\n": {}}\ncomponents: {a: {image: r/x}}'),
    ("components.a.roles[0]", 'name: p\ncomponents: {a: {image: r/x, roles: ["r\\n"]}}'),
    ("networks[0]", 'name: p\nnetworks: ["n\\n"]\ncomponents: {a: {image: r/x}}')])
def test_name_with_trailing_newline_is_refused(field, text):
    parse(text.replace("\\n", ""), "yaml")
    with pytest.raises(Invalid, match=re.escape(f"platform: {field}: ")):
        parse(text, "yaml")


def test_requested_version_with_trailing_newline_is_refused():
    component = parse("name: p\ncomponents: {a: {image: r/x}}", "yaml").components["a"]
    for version in ("1\n", f"1@sha256:{'0' * 64}\n"):
        with pytest.raises(Invalid, match="is not a version"):
            component.of_version(version)


def test_patterns_of_novad_reject_a_trailing_newline():
    """The "$" of regular expressions also matches before a final line end."""
    nova = ROOT / "nova"
    files = [*(nova / "novad").rglob("*.py"), *(nova / "common").rglob("*.py")]
    assert len(files) > 30
    loose = [f"{path.name}: {line.strip()}" for path in files for line in path.read_text().splitlines()
             if re.search(r'(pattern=|re\.compile\(|^[A-Z_]+ = )r"[^"]*(?<![\\(])\$"', line)]
    assert loose == []


@pytest.mark.parametrize(("first", "second", "why"), [
    ("/etc", "/etc/", "mounted twice"), ("/etc", "/data/../etc", "mounted twice"), ("/etc", "//etc/.", "mounted twice"),
    ("/data", "/", "root directory"), ("/data", "/x/..", "root directory")])
def test_duplicate_and_root_mounts_are_refused_after_normalization(first, second, why):
    text = (f"name: p\ncomponents: {{a: {{image: r/x, volumes: [{{name: v, destination: {first}}}], "
            f"files: {{{second}: t}}}}}}")
    with pytest.raises(Invalid, match=f"components.a: {re.escape(second)} .*{why}"):
        parse(text, "yaml")
