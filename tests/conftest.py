"""What all tests share."""

import os
import sys

import pytest
from hypothesis import settings

# A busy machine makes a slow example, not a wrong one; pytest-timeout bounds each test as a whole.
# On one's own machine every run tries new examples. In CI all runs try the same ones: what is new
# there should be the change, not the luck.
# Half of what hypothesis would try: there are hundreds of properties, and five minutes for all.
settings.register_profile("maitred", deadline=None, max_examples=40, derandomize="CI" in os.environ)
settings.load_profile("maitred")

# Hundreds of tests start processes of ours. Where the environment forbids to keep what was compiled
# (images for containers often do), each would compile all of it again, which takes longer than most
# tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

LONG = (
    "tests/gateway/test_processes.py",
    "tests/queries_real/test_disconnects.py",
    "tests/store/test_model.py",
    "tests/tasks/",
    "tests/test_against.py",
    "tests/test_documents.py",
)
"""These begin first: a long test that begins last keeps one core busy while the others idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
