"""Clients: connections to every shard of every node, direct requests, and the query gateway."""
