"""Persist tasks durably: the interface of a store, and its SQLite and PostgreSQL engines."""
