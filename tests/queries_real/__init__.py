"""Queries from end to end: real nodes, real workers, real clients, in one loop."""
