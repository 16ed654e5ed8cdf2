"""The app as it was before: one of its handlers knows one parameter less."""

from __future__ import annotations

import maitred

app = maitred.App("shop")


@app.handler("versioned", retries=0)
async def versioned(number: int) -> str:
    return f"{number}, uncoloured"
