"""Who gets what? Tasks, offers and leases of a partition, and how many there are of it. Pure."""
