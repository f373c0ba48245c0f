"""Benchmarks: what a boot costs, in time and in CPU, messages and SQL statements. See doc/performance.md."""
