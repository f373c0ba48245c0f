"""Benchmark of a cloud of thousands of nodes on one machine (``python -m tools.bench.scale``)."""
