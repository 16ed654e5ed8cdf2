"""An example pool of workers that answer SQL queries on quotes and trades."""
