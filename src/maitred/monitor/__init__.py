"""The pages for monitoring of nodes and workers: /health, /ready and /metrics."""
