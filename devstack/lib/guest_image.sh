# shellcheck shell=bash
# The guest image, rebuilt only if tools/guest-image changes.

build_guest_image() {
    local wanted
    wanted=$(digest "$REPO/tools/guest-image")
    if stamp_is guest-image "$wanted" && [ -s "$DATA_DIR/images/nova-guest.qcow2" ]; then
        echo "up to date"
        return 0
    fi
    "$REPO/tools/guest-image/build.sh" "$DATA_DIR/images"
    set_stamp guest-image "$wanted"
}
