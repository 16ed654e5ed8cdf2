"""`python -m maitred` is the command `maitred`."""

from maitred.cli.main import run

run()
