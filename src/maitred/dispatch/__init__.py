"""Queries at a gateway: query table, admission, choice of the worker, retries. Pure."""
