"""A worker polls where the backlog is; a producer writes in turn."""

from collections import Counter
from random import Random

from maitred.balancing import BacklogHint, selector
from maitred.routing import QueueId

queue = QueueId("shop", "thumbnails", 1)
selects = selector("weighted", Random(1))
backlogs = [0, 0, 0, 5_000]

print("writes go to", [selects.write(queue, 4, now=0.0) for _ in range(6)])

polls: Counter[int] = Counter()
for number in range(400):
    now = number / 100
    # Leaving the block gives the poll back, also by an exception. The answer carries a hint.
    with selects.read(queue, 4, now) as poll:
        polls[poll.partition] += 1
        poll.done(now, BacklogHint(backlogs[poll.partition], rate_per_second=20))
print("polls by partition:", [polls[partition] for partition in range(4)])

# Prints:
# | writes go to [0, 1, 2, 3, 0, 1]
# | polls by partition: [11, 11, 11, 367]
