"""What pyproject.toml can't say: the one module in C, and that it may be left out.

Where there is no compiler or no Python.h the install goes on without it, and `routing/tokens.py`
uses its Python. It keeps to Python's stable interface, so one build serves 3.11 and all later ones;
a Python without the GIL has no such interface yet, and gets the Python too.
"""

from __future__ import annotations

import sysconfig

from setuptools import Extension, setup

in_c = Extension(
    "maitred.routing._tokens",
    ["src/maitred/routing/_tokens.c"],
    py_limited_api=True,
    optional=True,
)

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup()
else:
    setup(ext_modules=[in_c], options={"bdist_wheel": {"py_limited_api": "cp311"}})
