"""Files of guests on a host, for all hypervisor drivers: directories and their transfer to other hosts."""
