"""A hypervisor driver that simulates guests, with all states and failures of real guests."""
