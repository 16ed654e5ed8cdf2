"""The admin API of a gateway: what it shows of queues, tasks, workers and nodes, and changes.

Nothing here knows HTTP. A view or an action takes its caller, the names in the path and the
parameters, and returns a Struct. The gateway's own connection to its node may do anything, so each
checks here what its caller may do.
"""
