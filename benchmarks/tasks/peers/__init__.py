"""What runs in the peers' own processes; each module is imported by its own interpreter only."""
