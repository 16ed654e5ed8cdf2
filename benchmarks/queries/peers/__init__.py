"""What runs in the peers' own processes."""
