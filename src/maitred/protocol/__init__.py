"""What is said: frames, CQL's own messages as far as a handshake needs them, and ours."""
