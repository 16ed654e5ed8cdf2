"""What decides about queries, without a network."""
