"""Turn spread routing on over two hours, partition by partition, at the same moments everywhere."""

from maitred.routing import GradualChange, QueueId, format_time, own_key, parse_time

batch_size: GradualChange[int] = GradualChange.parse(
    {"old": 0, "new": 8, "start": "2026-11-15T20:00:00Z", "end": "2026-11-15T22:00:00Z"}
)
queue = QueueId("shop", "thumbnails", 1)
now = parse_time("2026-11-15T21:00:00Z")

for partition in range(6):
    key = own_key(queue, partition)
    moment = batch_size.when(key)  # None if nothing changes
    print(
        f"partition {partition}: batch size {batch_size.value(key, now)} at 21:00,"
        f" flips at {format_time(moment) if moment else 'no time'}"
    )

# Prints:
# | partition 0: batch size 8 at 21:00, flips at 2026-11-15T20:26:47.497213Z
# | partition 1: batch size 0 at 21:00, flips at 2026-11-15T21:06:07.680811Z
# | partition 2: batch size 0 at 21:00, flips at 2026-11-15T21:01:32.019168Z
# | partition 3: batch size 0 at 21:00, flips at 2026-11-15T21:19:50.839119Z
# | partition 4: batch size 0 at 21:00, flips at 2026-11-15T21:33:12.488237Z
# | partition 5: batch size 8 at 21:00, flips at 2026-11-15T20:25:34.295855Z
