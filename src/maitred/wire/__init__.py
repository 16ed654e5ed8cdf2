"""How frames travel: one connection, both ends of it."""
