"""The gateway: the HTTP API for users, and the process that serves it."""
