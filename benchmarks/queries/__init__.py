"""How fast queries are, against peers in the same run: `python -m benchmarks.queries`.

Everything is real: servers, workers and clients are processes of their own on loopback, none of
them pinned. The driver (`__main__.py`) starts them, tells the clients what to do and is on nobody's
path. Peers and we alternate in rounds, and of each figure the median of the rounds counts: this
machine has two moods, and the best round would only say who met the better one.

    python -m benchmarks.queries                  all four, some five minutes
    python -m benchmarks.queries --quick          about a minute: does everything work
    python -m benchmarks.queries --only echo      one of echo, http, stream, mix; may be repeated
    python -m benchmarks.queries --publish        writes to where docs/benchmarks.md finds it
    python -m benchmarks.queries --against main   us alone, beside that commit (`against.py`)

- `echo.py`: 100 bytes there and back, by a bare uvloop echo, grpc.aio, NATS and a query.
- `http.py`: the HTTP API under wrk, against a server that is nothing but httptools.
- `stream.py`: a result of 100 MB, against a bare socket; and what memory that takes.
- `mix.py`: short and long queries on the same slots, handed out by us, round robin and to the least
  active.
- `running.py`: nodes, workers and clients; `asking.py`: what runs in a client.
- `peers/<name>.py`: what runs in a peer's own processes, of which `requirements/<name>.txt` has its
  own environment under `.venv-peers`.

A peer that cannot be installed or started is named in the result, with the reason.
"""
