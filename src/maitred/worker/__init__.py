"""Who runs it: offers of free slots, attempts at tasks, heartbeats, and ends."""
