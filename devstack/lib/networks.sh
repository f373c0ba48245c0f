# shellcheck shell=bash
# Removal of the guests' networks from the host.

remove_networks() { # unplug all guests with Nova's network driver; a network is removed with its last guest
    local conf=$DATA_DIR/etc/nova/nova.conf log=$DATA_DIR/logs/stack/networks.log
    [ -d "$DATA_DIR/nova" ] && [ -f "$conf" ] || return 0
    ! [ -d "$DATA_DIR/neutron" ] || return 0 # remove_switch removes the switch with all its ports
    "$VENV/bin/python" - "$conf" > "$log" 2>&1 <<- 'PYTHON' || warn "removing the networks failed: $(tail -n 1 "$log")"
	import sys
	from nova import conf
	conf.load(["--config-file", sys.argv[1]])
	from nova import network
	driver = network.driver()
	for guest in driver.guests():
	    driver.unplug_guest(guest)
	driver.start([])
	driver.stop()
	PYTHON
}
