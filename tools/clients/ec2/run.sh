#!/usr/bin/env bash
# Runs the tests of ec2api-tempest-plugin without VPC against nova-allinone with the EC2 API, the fake driver and embedded
# volumes, images and networks, and compares the results with the list of expected passes.
#
#   tools/clients/ec2/run.sh             fails if a test in expected-passes.txt does not pass
#   tools/clients/ec2/run.sh --update    rewrites the list
#
# Environment: CLIENTS_DIR, the directory of the virtual environment, the cloud and the logs (default: /tmp/nova-ec2);
# NOVA_BIN, the directory of the commands of Nova (default: that in PATH).
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
home=${CLIENTS_DIR:-/tmp/nova-ec2}
bin=${NOVA_BIN:-$(dirname "$(command -v nova-allinone)")}
venv=$home/venv cloud=$home/cloud api=18774 ec2=18788
mkdir -p "$home"
rm -rf "$cloud"
mkdir "$cloud"
if [ ! -x "$venv/bin/pytest" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install ec2api-tempest-plugin==1.7.0 pytest > "$home/pip.log" 2>&1 || { tail "$home/pip.log"; exit 1; }
fi

cat > "$cloud/nova.conf" <<- CONF
	[DEFAULT]
	state_path = $cloud/state
	[api]
	port = $api
	[ec2]
	enabled = True
	port = $ec2
CONF
manage() { "$bin/nova-manage" --config-file "$cloud/nova.conf" "$@" >> "$cloud/manage.log" 2>&1; }
HOME=$cloud "$bin/nova-allinone" --config-file "$cloud/nova.conf" > "$home/nova.log" 2>&1 &
nova=$!
trap 'kill "$nova"; wait "$nova" || true' EXIT
for _ in $(seq 100); do
    grep -q "Nova is at" "$home/nova.log" && break
    sleep 0.2
done
truncate -s 1M "$cloud/image"
manage image import "$cloud/image" --name tiny --disk-format raw --private ec2
manage network create --name ec2 --cidr 10.36.0.0/24
manage floating create --ip-range 198.51.100.0/28
for flavor in m1.tiny m1.small; do
    curl -sf -H 'X-Auth-Token: admin:admin' -H 'Content-Type: application/json' "http://127.0.0.1:$api/v2.1/flavors" \
        -d "{\"flavor\": {\"name\": \"$flavor\", \"ram\": 128, \"vcpus\": 1, \"disk\": 1}}" > /dev/null
done
image=$(curl -sf "http://127.0.0.1:$ec2/?Action=DescribeImages&AWSAccessKeyId=ec2:ec2&Signature=x" |
    sed -n 's/.*<imageId>\([^<]*\).*/\1/p')
cat > "$cloud/functional_tests.conf" <<- CONF
	[aws]
	ec2_url = http://127.0.0.1:$ec2/
	aws_access = ec2:ec2
	aws_secret = unused
	image_id = $image
	instance_type = m1.tiny
	instance_type_alt = m1.small
	build_timeout = 20
	run_ssh = False
CONF
tests=$("$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("ec2api_tempest_plugin").submodule_search_locations[0])')/api
cd "$cloud"
TEST_CONFIG_DIR=$cloud TEST_CONFIG=functional_tests.conf "$venv/bin/pytest" -p no:cacheprovider -q -rA --tb=short \
    -W ignore "$tests" > "$home/tests.log" 2>&1 || true
sed -n 's/^PASSED .*\/api\///p' "$home/tests.log" | sort > "$home/passed.txt"
tail -n 1 "$home/tests.log"
if [ "${1:-}" = --update ]; then
    cp "$home/passed.txt" "$here/expected-passes.txt"
else
    missing=$(comm -13 "$home/passed.txt" "$here/expected-passes.txt")
    [ -z "$missing" ] || { echo "Expected passes that did not pass:"; echo "$missing"; exit 1; }
fi
