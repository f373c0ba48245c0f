# shellcheck shell=bash
# The virtual environment of Nova, Keystone, Glance, the OpenStack client and supervisord.

# Python packages of the stack, with pinned major versions of the services. Wheels of all exist: no compiler is needed.
PYTHON_PACKAGES="keystone>=30,<31 glance>=33,<34 python-openstackclient>=10,<11 osc-placement>=4.9,<5 gunicorn>=23 supervisor>=4.3,<5
    python-memcached PyMySQL psycopg2-binary"

install_python() {
    local wanted extras=libvirt,cli
    if cinder_wanted; then PYTHON_PACKAGES+=" cinder>=29,<30" extras+=,cinder; fi
    if neutron_wanted; then PYTHON_PACKAGES+=" neutron>=29,<30"; fi
    wanted=$({ echo "$PYTHON_PACKAGES $NOVA_ENABLED $REPO $("$PYTHON" --version)"; digest "$REPO/setup.cfg" "$REPO/constraints.txt" "$REPO/pyproject.toml"; } |
        sha256sum | cut -c1-16)
    if stamp_is python "$wanted" && [ -x "$VENV/bin/supervisord" ]; then
        echo "up to date"
        return 0
    fi
    [ -x "$VENV/bin/pip" ] || "$PYTHON" -m venv "$VENV"
    link_libvirt_binding
    local packages
    read -r -d '' -a packages <<< "$PYTHON_PACKAGES" || true
    if is_true "$NOVA_ENABLED"; then packages+=(-e "${REPO}[$extras]"); fi
    # Tested versions, except for libvirt-python, which must match Debian's libvirt.
    grep -v '^libvirt-python==' "$REPO/constraints.txt" > "$DATA_DIR/constraints.txt"
    # One call, so that the resolver considers all requirements.
    "$REPO/tools/install-python.sh" "$VENV/bin/python" -c "$DATA_DIR/constraints.txt" "${packages[@]}"
    set_stamp python "$wanted"
}

# Compile byte code at the lowest priority; a service compiles the modules that it imports earlier. One process, because
# worker processes would survive the end of stack.sh.
compile_byte_code() { exec nice -n 19 "$VENV/bin/python" -m compileall -q -j 1 "$VENV/lib"; }

link_libvirt_binding() { # link Debian's libvirt-python and its metadata, so that pip does not install it
    local site file
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    for file in /usr/lib/python3/dist-packages/libvirt*; do
        ln -sfn "$file" "$site/$(basename "$file")"
    done
}
