#!/usr/bin/env bash
# Runs the functional tests of openstacksdk and python-novaclient for the Compute API against a cloud of
# devstack/stack.sh, and compares the results with lists of expected passes and skips.
#
#   tools/clients/run.sh             fails if a test fails, if a test in expected-passes.txt does not pass, or if a
#                                    skipped test is not in skips.txt
#   tools/clients/run.sh --update    rewrites both lists
#   tools/clients/run.sh PATTERN…    runs only tests whose name contains a pattern, without a comparison
#
# Environment: DATA_DIR (that of stack.sh); CLIENTS_DIR, the directory of the virtual environment and the logs (default:
# DATA_DIR/clients). functional.py selects the tests; excluded.txt lists excluded tests with reasons.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
data=${DATA_DIR:-/opt/stack/nova-data}
home=${CLIENTS_DIR:-$data/clients}
venv=$home/venv
if [ -z "${OS_AUTH_URL:-}" ] && [ -r "$data/openrc" ]; then
    # shellcheck source=/dev/null
    . "$data/openrc"
fi
: "${OS_AUTH_URL:?no openrc in $data: start devstack/stack.sh first}"
unset PYTHONDONTWRITEBYTECODE  # without byte code, each command would compile the clients again
update='' patterns=()
for argument in "$@"; do
    case $argument in
        --update) update=--update ;;
        -*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
        *) patterns+=("$argument") ;;
    esac
done

install_clients() {
    local wanted
    mkdir -p "$home"
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    wanted=$(sha256sum < "$here/requirements.txt")
    [ "$(cat "$venv/installed" 2> /dev/null)" = "$wanted" ] && return
    echo "Installing the clients into $venv"
    "$venv/bin/pip" install -r "$here/requirements.txt" > "$home/pip.log" 2>&1 || { tail "$home/pip.log"; exit 1; }
    echo "$wanted" > "$venv/installed"
}

write_clouds() { # write clouds.yaml with the cloud names of DevStack, which the tests expect
    {
        echo "clouds:"
        (. "$data/openrc-demo" && cloud devstack && cloud devstack-alt)
        cloud devstack-admin
        # Tests of lists fail if other tests have servers in the same project.
        OS_PROJECT_NAME=novaclient cloud functional_admin
        cloud devstack-system-admin "system_scope: all"
    } > "$home/clouds.yaml"
    chmod 600 "$home/clouds.yaml"
}

cloud() { # NAME [SCOPE]
    cat <<- YAML
	  $1:
	    region_name: $OS_REGION_NAME
	    identity_api_version: 3
	    auth:
	      auth_url: $OS_AUTH_URL
	      username: $OS_USERNAME
	      password: $OS_PASSWORD
	      user_domain_id: default
	YAML
    if [ -n "${2:-}" ]; then echo "      $2"; else printf '      project_name: %s\n      project_domain_id: default\n' "$OS_PROJECT_NAME"; fi
}

run_suite() { # SUITE: write the results to SUITE.subunit and the output to SUITE.log
    echo "Running the tests of $1; log: $home/$1.log"
    env -u OS_CLOUD OS_CLIENT_CONFIG_FILE="$home/clouds.yaml" TOX_ENV_DIR="$venv" \
        OPENSTACKSDK_FLAVOR=cirros256 OPENSTACKSDK_IMAGE=nova-guest OPENSTACKSDK_FUNC_TEST_TIMEOUT=600 OS_TEST_TIMEOUT=900 \
        "$venv/bin/python" "$here/functional.py" "$1" "$home/$1.subunit" "$here/excluded.txt" "${patterns[@]}" \
        > "$home/$1.log" 2>&1 || { tail "$home/$1.log"; exit 1; }
}

install_clients
write_clouds
# The SDK would use these variables as a further cloud; the tests select clouds by name.
unset "${!OS_@}"
for suite in openstacksdk novaclient; do run_suite "$suite"; done
if [ ${#patterns[@]} -eq 0 ]; then
    cat "$home/openstacksdk.subunit" "$home/novaclient.subunit" | "$venv/bin/python" "$here/../tempest/results.py" "$here" $update
else
    grep -h -E '^(success|fail|skip|error) ' "$home/openstacksdk.log" "$home/novaclient.log"
fi
