"""maitred seats every task and every query at a worker that is free."""

__version__ = "0.1.0"
