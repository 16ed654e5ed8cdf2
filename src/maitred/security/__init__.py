"""Who may come in and what for: secrets, users, permissions, TLS."""
