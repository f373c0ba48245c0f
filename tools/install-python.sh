#!/usr/bin/env bash
# Installs Python packages: install-python.sh PYTHON [arguments of pip install]
# Uses uv, which is five times as fast as pip, and pip if uv fails.
set -euo pipefail
python=$1
shift
index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2> /dev/null || true)}
[ -z "$index" ] || export UV_DEFAULT_INDEX=$index
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=$PIP_CERT
export UV_HTTP_TIMEOUT=60 UV_NO_PROGRESS=1
if "$python" -m pip install -q --no-compile 'uv>=0.5' &&
    "$python" -m uv pip install -q --python "$python" "$@"; then
    exit 0
fi
echo "uv failed; installing with pip"
exec "$python" -m pip install --prefer-binary --progress-bar off "$@"
