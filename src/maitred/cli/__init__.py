"""The command line: `maitred`."""
