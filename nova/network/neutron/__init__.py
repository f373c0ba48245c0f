"""Networks of guests by Neutron: ports for the conductor, plugging on the host."""
