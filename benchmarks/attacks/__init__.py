"""Attacks against a real node, bounded in time and count, on loopback."""
