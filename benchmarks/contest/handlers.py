"""The provider as a maitred worker: `maitred worker benchmarks.contest.handlers:app --slots POOL`.

One handler, in a queue for each policy.
"""

from __future__ import annotations

import maitred
from benchmarks.contest.policies import POLICIES
from benchmarks.contest.provider import Provider

app = maitred.App("default")
_here: list[Provider] = []


async def work() -> int:
    if not _here:  # a provider needs the loop, which is not there before
        _here.append(Provider.here(maitred.waiting))
    return await _here[0].serve()


for _policy in POLICIES:
    app.handler(_policy)(work)
