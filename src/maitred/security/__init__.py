"""Authentication and authorisation: secrets, users, permissions, TLS."""
