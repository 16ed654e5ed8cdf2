"""What all tests share."""

from hypothesis import settings

# A busy machine makes a slow example, not a wrong one; pytest-timeout bounds each test as a whole.
settings.register_profile("maitred", deadline=None)
settings.load_profile("maitred")
