"""Manifests of the installation: facts chapter 8, and the agent's rights (promise P8)."""

import shutil
import subprocess

import pytest
import yaml

from nova import __version__
from nova.cmd import federator
from nova.common.errors import Invalid
from nova.federator.api.objects import KINDS
from nova.federator.client import manifests
from nova.federator.client.manifests import INSTALL, Settings
from nova.federator.controllers.providers import HELPER, Providers
from nova.federator.local.binaries import cache_directory
from nova.federator.scheduling import standby

KUBECTL = shutil.which("kubectl") or shutil.which(str(cache_directory() / "bin/kubectl"))
needs_kubectl = pytest.mark.skipif(not KUBECTL, reason="kubectl is not installed")
WAITS = {"etcd": ("app", "etcd"), "apiserver": ("component", "apiserver"),
         "kube-controller-manager": ("component", "controller-manager"),
         "nova-scheduler": ("component", "nova-scheduler")}


def built(folder, install=INSTALL):
    result = subprocess.run([KUBECTL, "kustomize", install / folder], capture_output=True, text=True, timeout=60,
                            check=False)
    assert result.returncode == 0, result.stderr
    return [obj for obj in yaml.safe_load_all(result.stdout) if obj]


def adapted(tmp_path, *changes, components=(), base="control-plane"):
    """Return a copy of the folder ``install``. ``changes``: (file, text, other text), as a user edits files.
    ``components``: optional ones of the kustomization ``base``."""
    copy = tmp_path / "install"
    shutil.copytree(INSTALL, copy)
    for name, text, other in changes:
        content = (copy / name).read_text()
        assert text in content
        (copy / name).write_text(content.replace(text, other))
    with (copy / f"base/{base}/kustomization.yaml").open("a") as file:
        file.write("components:\n" * bool(components))
        file.write("".join(f"- ../../components/{name}\n" for name in components))
    return copy


def keyed(objects):
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}


def arguments(workload):
    container = workload["spec"]["template"]["spec"]["containers"][0]
    return [*container.get("command", ()), *container.get("args", ())]


@needs_kubectl
@pytest.mark.parametrize(("folder", "objects"), [
    ("base/control-plane", manifests.control_plane(Settings())),
    ("overlays/cp-ha", manifests.control_plane(Settings(replicas=3))),
    ("base/agent", manifests.agent(Settings(cluster="my-workload-cluster"))),
    ("overlays/workload-cluster-1", manifests.agent(Settings(cluster="kind-workload-1"))),
    ("overlays/workload-cluster-2", manifests.agent(Settings(cluster="kind-workload-2")))])
def test_novactl_and_kustomize_install_the_same_objects(folder, objects):
    """Facts chapter 8: the paths of the guide. ``kubectl apply -k`` and ``novactl install`` agree in every field."""
    assert keyed(built(folder)) == keyed(objects)


@needs_kubectl
@pytest.mark.parametrize("components", [("alerts",), ("metrics", "alerts", "alerts-tls", "standby"), ("standby",)])
@pytest.mark.parametrize(("folder", "replicas"), [("base/control-plane", 1), ("overlays/cp-ha", 3)])
def test_novactl_installs_the_optional_components_of_the_kustomization(tmp_path, monkeypatch, folder, replicas,
                                                                       components):
    """``kubectl apply -k`` and ``novactl install`` agree in every field, but for the order of list elements."""
    copy = adapted(tmp_path, components=components)
    monkeypatch.setattr(manifests, "INSTALL", copy)
    objects = keyed(manifests.control_plane(Settings(replicas=replicas)))
    assert objects == keyed(built(folder, copy))
    assert ("Service", "nova-alerts") in objects or "alerts" not in components


@pytest.mark.parametrize(("line", "problem"), [
    ("images: []\n", "images"), ("components: [../../components/none]\n", "Cannot read"),
    ("patches: [{path: nova_scheduler.yaml, options: {}}]\n", "patches"),
    ("patches: [{target: {kind: Pod}, patch: '[]'}]\n", "no object"),
    ("patches: [{target: {name: etcd}, patch: '[{op: test, path: /spec}]'}]\n", "operation test"),
    ("patches: [{target: {name: etcd}, patch: '[{op: remove, path: /spec/none/x}]'}]\n", "/spec/none/x"),
    ("patches: ['{']\n", "malformed")])
def test_novactl_refuses_a_kustomization_that_it_would_not_follow(tmp_path, monkeypatch, line, problem):
    copy = adapted(tmp_path)
    with (copy / "base/control-plane/kustomization.yaml").open("a") as file:
        file.write(line)
    monkeypatch.setattr(manifests, "INSTALL", copy)
    with pytest.raises(Invalid, match=problem):
        manifests.control_plane(Settings())


@needs_kubectl
@pytest.mark.parametrize(("folder", "objects"), [
    ("overlays/cp-ha", manifests.control_plane(Settings(namespace="shop", replicas=3))),
    ("overlays/workload-cluster-1", manifests.agent(Settings(namespace="shop", cluster="kind-workload-1")))])
def test_one_line_of_a_kustomization_changes_the_namespace(tmp_path, folder, objects):
    """The guide replaces this line, also for the service accounts that roles are bound to."""
    copy = adapted(tmp_path, *((f"base/{name}/kustomization.yaml", "namespace: elotl\n", "namespace: shop\n")
                               for name in ("control-plane", "agent")))
    assert keyed(built(folder, copy)) == keyed(objects)


@needs_kubectl
@pytest.mark.parametrize("folder", ["base/control-plane", "overlays/cp-ha"])
def test_component_alerts_makes_the_receiver_reachable(tmp_path, folder):
    """The options of nova-federator are accepted, and each file that they name is in a volume."""
    plain, secure = (keyed(built(folder, adapted(tmp_path / "-".join(names), components=names)))
                     for names in (("alerts",), ("alerts", "alerts-tls")))
    for objects, scheme, secrets in ((plain, "HTTP", ["nova-alerts"]),
                                     (secure, "HTTPS", ["nova-alerts", "nova-alerts-tls"])):
        service, scheduler = objects["Service", "nova-alerts"], objects["Deployment", "nova-scheduler"]
        pod = scheduler["spec"]["template"]
        container, = pod["spec"]["containers"]
        assert service["metadata"]["namespace"] == scheduler["metadata"]["namespace"] == "elotl"
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        port, = container["ports"]
        probe = container["readinessProbe"]["httpGet"]
        assert service["spec"]["ports"][0]["targetPort"] == probe["port"] == port["name"]
        assert probe["scheme"] == scheme
        options = federator_options(container)
        assert options.alerts_address == f"0.0.0.0:{port['containerPort']}"
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        files = [file for file in (options.alerts_token_file, options.alerts_cert, options.alerts_key) if file]
        assert sorted({volumes[mounts[str(file.parent)]]["secret"]["secretName"] for file in files}) == secrets
    assert (options.alerts_token_file.name, options.alerts_cert.name, options.alerts_key.name) == (
        "token", "tls.crt", "tls.key")
    base = keyed(built(folder))
    assert {name for name in plain if plain[name] != base.get(name)} == {
        ("Service", "nova-alerts"), ("Deployment", "nova-scheduler")}


def federator_options(container):
    program, *arguments = container["command"]
    assert program == "nova-federator"
    return federator._parser().parse_args(arguments)


@needs_kubectl
def test_component_metrics_opens_the_port_that_prometheus_reads(tmp_path):
    template = keyed(built("overlays/cp-ha", adapted(tmp_path, components=("alerts", "metrics"))))[
        "Deployment", "nova-scheduler"]["spec"]["template"]
    container, = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert federator_options(container).metrics_address == f"0.0.0.0:{ports['metrics']}"
    assert template["metadata"]["annotations"] == {"prometheus.io/scrape": "true",
                                                   "prometheus.io/port": str(ports["metrics"])}
    assert federator_options(container).alerts_address == f"0.0.0.0:{ports['alerts']}"


@needs_kubectl
def test_component_agent_metrics_opens_the_port_that_prometheus_reads(tmp_path, monkeypatch):
    """Overlays of workload clusters replace the arguments of the agent, and novactl its name."""
    copy = adapted(tmp_path, components=("agent-metrics",), base="agent")
    objects = keyed(built("overlays/workload-cluster-1", copy))
    monkeypatch.setattr(manifests, "INSTALL", copy)
    assert keyed(manifests.agent(Settings(cluster="kind-workload-1"))) == objects
    template = objects["Deployment", "nova-agent"]["spec"]["template"]
    container, = template["spec"]["containers"]
    port, = container["ports"]
    for name, value in variables_of(container).items():
        monkeypatch.setenv(name, value)
    options = federator._parser().parse_args([*container["command"][1:], *container["args"]])
    assert options.metrics_address == f"0.0.0.0:{port['containerPort']}"
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])


@needs_kubectl
def test_component_standby_configures_the_helper(tmp_path):
    objects = keyed(built("overlays/cp-ha", adapted(tmp_path, components=("standby", "alerts"))))
    pod = objects["Deployment", "nova-scheduler"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    environment = variables_of(container)
    assert standby.Settings.of(environment) == standby.Settings(enabled=True)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    folder, _slash, file = environment[HELPER].rpartition("/")
    volume, = (volume for volume in pod["volumes"] if volume["name"] == mounts[folder])
    assert (file, volume["configMap"]) == ("helper", {"name": "nova-standby-helper", "defaultMode": 0o555})
    assert federator_options(container).alerts_address, "both components apply"


def test_all_variables_of_standby_are_in_the_manifest_with_their_defaults():
    scheduler = keyed(manifests.control_plane(Settings()))["Deployment", "nova-scheduler"]
    environment = variables_of(scheduler["spec"]["template"]["spec"]["containers"][0])
    assert {*standby.VARIABLES, HELPER} <= set(environment)
    assert standby.Settings.of(environment) == standby.Settings()
    assert Providers(environment).of("") is None


def variables_of(container):
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


@pytest.mark.parametrize("replicas", [1, 3])
def test_components_have_names_labels_and_selectors_of_chapter_8(replicas):
    objects = keyed(manifests.control_plane(Settings(replicas=replicas)))
    for name, (label, value) in WAITS.items():
        workload = objects["StatefulSet" if name == "etcd" else "Deployment", name]
        assert workload["spec"]["replicas"] == replicas
        assert workload["spec"]["template"]["metadata"]["labels"] == {label: value}
        assert workload["spec"]["selector"]["matchLabels"] == {label: value}
        pod = workload["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "elotl"}]
        if replicas == 3:
            term, = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term == {"topologyKey": "topology.kubernetes.io/zone",
                            "labelSelector": {"matchLabels": {label: value}}}
            if name != "etcd":  # with a surge pod, an update would never end in three zones
                assert workload["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_control_plane_has_the_arguments_of_chapter_8():
    objects = keyed(manifests.control_plane(Settings()))
    server = arguments(objects["Deployment", "apiserver"])
    assert {"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth=true", "--secure-port=6443", "--service-cluster-ip-range=10.96.0.0/16",
            "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection",
            "--etcd-servers=https://etcd-client.$(POD_NAMESPACE).svc.cluster.local:2379"} <= set(server)
    container = objects["Deployment", "apiserver"]["spec"]["template"]["spec"]["containers"][0]
    live, ready = container["livenessProbe"], container["readinessProbe"]
    assert (live["httpGet"]["path"], live["initialDelaySeconds"], live["periodSeconds"], live["failureThreshold"]) == (
        "/livez", 10, 10, 8)
    assert container["startupProbe"]["httpGet"] == live["httpGet"], "a slow start is no failure"
    assert (ready["httpGet"]["path"], ready["periodSeconds"], ready["failureThreshold"]) == ("/readyz", 1, 3)
    manager = arguments(objects["Deployment", "kube-controller-manager"])
    assert {"--controllers=garbagecollector,namespace,serviceaccount-token",
            "--use-service-account-credentials=true"} <= set(manager)
    claim, = objects["StatefulSet", "etcd"]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "etcd-data"
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Gi"}}}
    scheduler = objects["Deployment", "nova-scheduler"]["spec"]
    assert scheduler["strategy"] == {"type": "Recreate"}
    environment = {entry["name"]: entry.get("value") for entry in
                   scheduler["template"]["spec"]["containers"][0]["env"]}
    assert {"NOVA_IDLE_ENTER_STANDBY_ENABLE", "NOVA_IDLE_ENTER_STANDBY_SECS", "NOVA_DELETE_CLUSTER_IN_STANDBY",
            "NOVA_CREATE_CLUSTER_IF_NEEDED", "NOVA_MAX_CREATED_CLUSTERS"} <= set(environment)
    assert environment["KUBECONFIG"] == "/etc/nova/kubeconfig"


def test_only_the_scheduler_mounts_the_key_that_signs_agents():
    """Promise P8: a compromised API server pod must not be able to sign certificates of agents."""
    mounted = {}
    for (_kind, name), obj in keyed(manifests.control_plane(Settings())).items():
        volumes = obj.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ())
        mounted[name] = {volume["secret"]["secretName"] for volume in volumes}
    assert {name for name, secrets in mounted.items() if "nova-ca" in secrets} == {"nova-scheduler"}


def test_a_variable_stands_before_the_variables_that_refer_to_it():
    """Kubernetes leaves references to later variables unexpanded."""
    for replicas in (1, 3):
        etcd = keyed(manifests.control_plane(Settings(replicas=replicas)))["StatefulSet", "etcd"]
        names = [entry["name"] for entry in etcd["spec"]["template"]["spec"]["containers"][0]["env"]]
        assert names.index("POD_NAMESPACE") < names.index("INITIAL_CLUSTER")
    members = etcd["spec"]["template"]["spec"]["containers"][0]["env"][-1]["value"].split(",")
    assert [member.partition("=")[0] for member in members] == ["etcd-0", "etcd-1", "etcd-2"]


def test_the_service_of_the_api_server_is_a_load_balancer():
    """Facts chapter 8: base/control-plane/apiserver.yaml has the Service only, 443 to 6443."""
    service, = manifests.service(Settings(namespace="shop"))
    assert (service["kind"], service["metadata"]["name"], service["metadata"]["namespace"]) == (
        "Service", "apiserver", "shop")
    assert service["spec"]["type"] == "LoadBalancer"
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(443, 6443)]
    text = (INSTALL / "base/control-plane/kustomization.yaml").read_text()
    assert "- apiserver.yaml" not in text, "uninstalling the components must not remove the address"


def test_the_agent_has_no_right_to_everything():
    """Promise P8: the propagated kinds, aggregated, and no wildcard."""
    objects = keyed(manifests.agent(Settings(cluster="x")))
    roles = [obj for (kind, _name), obj in objects.items() if kind == "ClusterRole"]
    assert len(roles) == 3
    values = [value for role in roles for rule in role["rules"] for value in
              (*rule["apiGroups"], *rule["resources"], *rule["verbs"])]
    assert "*" not in values
    assert not {"escalate", "bind", "impersonate"}.intersection(values)
    writable = {(group, resource) for role in roles for rule in role["rules"] if "delete" in rule["verbs"]
                for group in rule["apiGroups"] for resource in rule["resources"]}
    assert writable == {(kind.group, kind.plural) for kind in KINDS}, "the kinds that Nova propagates"
    aggregated = objects["ClusterRole", "nova-agent"]["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"]
    for role in roles:
        assert role["metadata"]["name"] == "nova-agent" or role["metadata"]["labels"] == aggregated


def test_the_agent_has_deployment_and_arguments_of_chapter_6():
    """Facts chapter 6 and 8: strategy Recreate, the Secret with the bootstrap kubeconfig, the cluster's name."""
    objects = keyed(manifests.agent(Settings(namespace="nova", cluster="edge-7", repository="registry/nova", tag="t1")))
    deployment = objects["Deployment", "nova-agent"]
    assert deployment["metadata"]["namespace"] == "nova"
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert {"--cluster-name=edge-7", "--control-plane-kubeconfig=/etc/nova/kubeconfig"} <= set(arguments(deployment))
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry/nova:t1"
    assert pod["volumes"][0]["secret"]["secretName"] == "nova-cluster-init-kubeconfig"
    subject, = objects["ClusterRoleBinding", "nova-agent"]["subjects"]
    assert subject["namespace"] == "nova"
    assert "namespace: elotl\n" in (INSTALL / "base/agent/kustomization.yaml").read_text(), "replaced by the guide"
    for number in (1, 2):
        path = INSTALL / f"overlays/workload-cluster-{number}/nova_agent.yaml"
        assert f"--cluster-name=kind-workload-{number}\n" in path.read_text()


def test_images_have_the_version_of_this_release():
    text = "".join(path.read_text() for path in INSTALL.rglob("*.yaml"))
    assert text.count(f"elotl/nova-federator:v{__version__}\n") == 2
    assert f"value: v{__version__}\n" in text


def test_the_scheduler_gives_agents_the_host_of_a_control_plane_without_load_balancer():
    for host in ("", "172.18.0.2"):
        scheduler = keyed(manifests.control_plane(Settings(public_host=host)))["Deployment", "nova-scheduler"]
        container = scheduler["spec"]["template"]["spec"]["containers"][0]
        assert {"name": "NOVA_API_PUBLIC_HOST_OVERRIDE", "value": host} in container["env"]


def test_image_options_change_nova_images_only():
    """Facts chapter 10: --image-repository and --image-tag, also for agents that the scheduler installs."""
    objects = keyed(manifests.control_plane(Settings(repository="registry/nova", tag="t1")))
    container = objects["Deployment", "nova-scheduler"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry/nova:t1"
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (environment["AGENT_IMAGE_REPO"], environment["AGENT_IMAGE_TAG"]) == ("registry/nova", "t1")
    server = objects["Deployment", "apiserver"]["spec"]["template"]["spec"]["containers"][0]
    assert server["image"].startswith("registry.k8s.io/kube-apiserver:")
