"""Decides which nodes belong to the cluster: views, heartbeats, votes, joining, leaving. Pure."""
