"""How many workers does a queue need? A real node, real workers and a client, in virtual time."""

from maitred.simulation.capacity import (
    CapacitySettings,
    capacity_plan,
    planned_workers,
    service_times,
)

settings = CapacitySettings(
    rate_per_second=8.0,
    service=service_times("exponential:1"),
    workers=planned_workers(6, slow=("1:2",)),
    slots=2,
    count=500,
)
plan = capacity_plan(settings, lambda _done, _total, _what: None)
for name, run in plan.runs.items():
    wait = run.waits.p99 if run.waits else float("nan")
    print(f"{name}: {run.busy:.0%} busy, 99 % begin within {wait:.2f} s")

# Prints, in other versions with other numbers:
# ~ one fewer: 90% busy, 99 % begin within 1.41 s
# ~ as asked: 73% busy, 99 % begin within 0.48 s
# ~ one more: 63% busy, 99 % begin within 0.07 s
