"""One worker of the example: `maitred worker`, which ends when whoever started it is gone.

Whoever started it holds the other end of its standard input. A process that is killed cannot tell
its children; but its end of the pipe is closed, and that is seen here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

APP = "maitred.example.market:app"


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from maitred.cli.main import cli

    cli.main(["worker", APP, *sys.argv[1:]], prog_name="maitred")


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
