"""Arbitrary bytes against everything that reads what strangers send."""
