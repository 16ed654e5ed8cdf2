"""The wire protocol: frames, the CQL messages of a handshake, and maitred's own messages."""
