"""A hypervisor driver without guests, with all states and failures of real ones."""
