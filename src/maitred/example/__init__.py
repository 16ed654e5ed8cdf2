"""A pool of workers to try queries with: quotes and trades, and SQL to ask for them."""
