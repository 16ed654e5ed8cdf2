"""Who asks: connections to every shard of every node, and requests that go straight to theirs."""
