"""Benchmarks: ratios against a peer or a limit, both measured in the same run."""
