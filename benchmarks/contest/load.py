"""wrk, told to count answers by status in tenths of a second.

wrk's own statistics are over all of its run. Its scripts are LuaJIT's, so they can ask the system
for the time; so there is a curve, and the warm-up can be left out. The script writes each tenth to
a file when the next one begins: tables do not survive the way from wrk's threads to its end.
"""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.queries.http import wrk
from benchmarks.tasks.processes import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

BUCKET_SECONDS = 0.1
GOOD = 200
CAUSES = {429: "refused", 502: "lost", 503: "full", 504: "late"}
"""What the statuses of failures mean here: refused by the gateway, a connection lost (or, of nginx,
nobody has room), a full pool (or a wait that was too long), no answer in time."""

SCRIPT = """\
local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long us; } moment; int gettimeofday(moment *, void *);")
local moment = ffi.new("moment")
wrk.method = "POST"
wrk.body = "[]"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Maitred-Timeout"] = "%g"
local counts, last, file = {}, nil, nil
function response(status)
  ffi.C.gettimeofday(moment, nil)
  local at = tonumber(moment.s) + tonumber(moment.us) / 1e6 - %.6f
  local bucket = math.floor(at / %g)
  if bucket ~= last then
    file = file or io.open("%s", "w")
    for of, count in pairs(counts) do
      file:write(string.format("%%d %%d %%d\\n", of, last, count))
    end
    file:flush()
    counts, last = {}, bucket
  end
  counts[status] = (counts[status] or 0) + 1
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format("told %%d %%d %%d %%d %%d %%d %%d %%d\\n",
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    errors.connect, errors.read, errors.write, errors.timeout, summary.requests))
end
"""


@dataclass(frozen=True)
class Answers:
    """What came back while it counted."""

    over_time: list[int]
    """Good ones, in each tenth of a second."""
    failures: dict[str, int]
    """By cause."""
    p50_ms: float
    p99_ms: float
    p999_ms: float
    """Of all answers, those of the warm-up and refusals included: wrk knows no others."""

    @property
    def good(self) -> int:
        return sum(self.over_time)


class Load:
    """wrk, once it was started."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        connections: int,
        timeout_seconds: float,
        begin: float,
        lasts: float,
        seconds: float,
    ) -> None:
        script = folder / "load.lua"
        self._counts = folder / "load.counts"
        self._counts.unlink(missing_ok=True)
        script.write_text(SCRIPT % (timeout_seconds, begin, BUCKET_SECONDS, self._counts))
        self.words = [wrk(), "-t1", f"-c{connections}", f"-d{math.ceil(lasts)}s", "-s", str(script)]
        # wrk's own timeout only counts, and would count what the gateway is about to give up.
        self.words += ["--timeout", f"{math.ceil(2 * timeout_seconds)}s", url]
        self._seconds = seconds
        self._within = lasts + 30
        self._process = subprocess.Popen(
            self.words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def end(self) -> None:
        """If it still runs, for whatever reason."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def answers(self) -> Answers:
        said, problem = self._process.communicate(timeout=self._within)
        ends = [line.split() for line in said.splitlines() if line.startswith("told ")]
        if not ends or not self._counts.exists():
            raise Unavailable(f"wrk said {said[-200:]!r} {problem[-200:]!r}")
        p50, p99, p999, *errors = map(int, ends[0][1:])
        over_time = [0] * round(self._seconds / BUCKET_SECONDS)
        failures: Counter[str] = Counter()
        for line in self._counts.read_text().splitlines():
            status, bucket, count = map(int, line.split())
            if not 0 <= bucket < len(over_time):
                continue
            if status == GOOD:
                over_time[bucket] += count
            else:
                failures[CAUSES.get(status, str(status))] += count
        for name, count in zip(("connect", "read", "write", "timeout"), errors, strict=False):
            if count:
                failures[f"wrk {name}"] += count
        return Answers(over_time, dict(failures), p50 / 1e3, p99 / 1e3, p999 / 1e3)
