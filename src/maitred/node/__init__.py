"""A node: one process a core, each with its share of the partitions, sharing nothing."""
