"""Where every partition of a queue lives, and what a lost host moves."""

from maitred.routing import HashRing, QueueId, place_all, routes

ring = HashRing(["a:7411", "b:7411", "c:7411"])
queue = QueueId("shop", "thumbnails", 1)

for route in routes(ring, queue, 6, shards=4):
    print(f"{route.name:20} lives on {route.node}, core {route.shard}")

before = place_all(ring, queue, 64, batch_size=8, placement="steady")
ring.remove("c:7411")
after = place_all(ring, queue, 64, batch_size=8, placement="steady")
moved = sum(old.node != new.node for old, new in zip(before, after, strict=True))
print(f"{moved} of 64 partitions moved when c:7411 left")

# Prints:
# | thumbnails           lives on a:7411, core 3
# | /_sys/thumbnails/1   lives on a:7411, core 3
# | /_sys/thumbnails/2   lives on c:7411, core 2
# | /_sys/thumbnails/3   lives on b:7411, core 2
# | /_sys/thumbnails/4   lives on c:7411, core 0
# | /_sys/thumbnails/5   lives on b:7411, core 0
# | 25 of 64 partitions moved when c:7411 left
