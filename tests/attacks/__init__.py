"""Attacks on a running node, one file per hole that was found; each fails without its fix."""
