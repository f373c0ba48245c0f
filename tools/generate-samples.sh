#!/usr/bin/env bash
# Generates the sample configuration and the sample policy from the options and rules in the code.
#   tools/generate-samples.sh [DIRECTORY]     default: etc/nova; run it after a change of options or rules
# Nova must be installed (pip install -e .) for the Python in the environment variable PYTHON (default: python3).
set -euo pipefail
directory=$(realpath -m "${1:-$(dirname "$0")/../etc/nova}")
bin=$(dirname "$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')")
export PYTHONWARNINGS=ignore

mkdir -p "$directory"
"$bin/oslo-config-generator" --output-file "$directory/nova.conf.sample" \
    --namespace nova.conf --namespace oslo.log --namespace oslo.messaging --namespace oslo.policy \
    --namespace keystonemiddleware.auth_token
"$bin/oslopolicy-sample-generator" --namespace nova --output-file "$directory/policy.yaml.sample"
