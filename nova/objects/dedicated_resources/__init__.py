"""What guests have of their hosts for themselves: NUMA cells, CPUs and PCI devices."""
