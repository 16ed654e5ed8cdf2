"""The HTTP listener of a gateway."""
