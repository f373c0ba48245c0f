# shellcheck shell=bash
# Images: their layers, entry points and accounts.

ALL_IMAGES="database rabbitmq memcached keystone glance nova-conductor nova-scheduler nova-api nova-metadata nova-novncproxy
    nova-serialproxy nova-spicehtml5proxy nova-compute"
# Images of a Nova control plane in Kubernetes. The last three contain the programs that tools/kubernetes/build.sh builds.
KUBERNETES_IMAGES="etcd kube-apiserver kube-controller-manager"
FEDERATOR_IMAGES="nova-federator $KUBERNETES_IMAGES"
VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$REPO/nova/__init__.py")

layers_of() { # IMAGE
    case $1 in
        database | rabbitmq | memcached) echo "base $1" ;;
        keystone | glance) echo "base services" ;;
        nova-federator) echo "base federator" ;;
        etcd) echo "base etcd" ;;
        kube-*) echo "$1" ;; # static programs, which need no other file
        nova-compute) echo "base compute python nova" ;;
        nova-novncproxy | nova-spicehtml5proxy) echo "base consoles python nova" ;;
        nova-*) echo "base python nova" ;;
    esac
}

account_of() { # IMAGE: print its user id (hooks/base)
    case $1 in
        nova-*) echo 970 ;;
        keystone) echo 971 ;;
        glance) echo 972 ;;
        database) echo 973 ;;
        rabbitmq) echo 974 ;;
        memcached | kube-*) echo 65534 ;;
        etcd) echo 0 ;; # owner of the volumes of many clusters
    esac
}

start_of() { # IMAGE: print its entry point as JSON
    case $1 in
        nova-federator) echo '["/opt/nova/bin/nova-federator"]' ;;
        etcd | kube-*) echo "[\"/usr/local/bin/$1\"]" ;;
        nova-*) echo "[\"/usr/local/bin/start\", \"$1\"]" ;;
        memcached) echo '["/usr/bin/memcached", "-m", "64"]' ;;
        *) echo '["/usr/local/bin/start"]' ;;
    esac
}

path_of() { # IMAGE
    local own=
    case $1 in
        nova-*) own=/opt/nova/bin: ;;
        keystone | glance) own=/opt/services/bin: ;;
    esac
    echo "$own/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

assemble_images() {
    local image digest
    [ "$IMAGES" != "$ALL_IMAGES" ] || rm -f "$OUTPUT/oci/index.json" # the registry retains images of other versions
    for image in $IMAGES; do
        add_rootfs_layer "$(rootfs_of "$image")"
        describe_image "$image" > "$WORK/image.json"
        digest=$(oci image "$WORK/image.json" --layout "$OUTPUT/oci")
        say "image nova/$image:$VERSION $digest"
    done
}

rootfs_of() { # IMAGE: print the name of its directory in rootfs, which exists if the image has files of its own
    if [ "$1" = nova-federator ]; then echo federator; else echo "${1%%-*}"; fi
}

add_rootfs_layer() { # KIND: build the layer of the files in rootfs/KIND, if the directory exists
    local tree=$WORK/rootfs.$1
    [ -d "$HERE/rootfs/$1" ] && [ ! -e "$WORK/$1.json" ] || return 0
    cp -r "$HERE/rootfs/$1" "$tree"
    case $1 in
        keystone) cp "$REPO/devstack/lib/accounts.py" "$tree/usr/local/bin/" ;;
        glance) install -D -m 644 "$REPO/devstack/lib/glance_policy.yaml" "$tree/etc/glance/policy.yaml" ;;
    esac
    chown -R 0:0 "$tree"
    chmod -R u=rwX,go=rX "$tree"
    (cd "$tree" && SOURCE_DATE_EPOCH=$LAYERS_EPOCH oci pack . $(ls) --tar "$WORK/$1.tar")
    oci compress "$WORK/$1.tar" --layout "$OUTPUT/oci" > "$WORK/$1.json"
}

describe_image() { # IMAGE: print the description for "oci.py image"
    local image=$1 layer name=nova/$1 files=() time=$LAYERS_EPOCH start
    start=$WORK/$(rootfs_of "$image").json
    for layer in $(layers_of "$image"); do
        files+=("$layer=$OUTPUT/layers/$layer.json")
        [ "$layer" != nova ] || time=$(epoch_of nova)
    done
    [ ! -e "$start" ] || files+=("start=$start")
    "$PYTHON" - "$name" "$VERSION" "$time" "$(account_of "$image")" "$(path_of "$image")" "$(start_of "$image")" \
        "${files[@]}" <<- 'PYTHON'
	import datetime, json, platform, sys
	name, version, time, account, path, start, *files = sys.argv[1:]
	layers = []
	for argument in files:
	    layer, _separator, file = argument.partition("=")
	    layers.append({**json.load(open(file)), "name": layer})
	print(json.dumps({
	    "name": name, "tag": version, "layers": layers,
	    "created": datetime.datetime.fromtimestamp(int(time), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
	    "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
	    "config": {"Entrypoint": json.loads(start), "User": f"{account}:{account}",
	               "Env": [f"PATH={path}", "LC_ALL=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"],
	               "Labels": {"org.opencontainers.image.title": name}}}))
	PYTHON
}

digests_of() { # OUTPUT: print lines "IMAGE DIGEST"
    "$PYTHON" -c 'import json, sys
for entry in json.load(open(sys.argv[1]))["manifests"]: print(*entry["annotations"].values(), entry["digest"])' "$1/oci/index.json"
}

push_images() {
    local image
    for image in $IMAGES; do
        oci push "nova/$image:$VERSION" --layout "$OUTPUT/oci" --registry "$REGISTRY" --tag stable
    done
    say "pushed to $REGISTRY with the tags $VERSION and stable"
}
