"""What all tests share."""

import os

from hypothesis import settings

# A busy machine makes a slow example, not a wrong one; pytest-timeout bounds each test as a whole.
# On one's own machine every run tries new examples. In CI all runs try the same ones: what is new
# there should be the change, not the luck.
# Half of what hypothesis would try: there are hundreds of properties, and ten minutes for all.
settings.register_profile("maitred", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("maitred")
