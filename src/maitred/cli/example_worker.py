"""One worker of the example: `maitred worker`, which ends when its parent process ends.

The parent holds the other end of this process's standard input. A parent that is killed cannot
signal its children; but its end of the pipe is closed, and this process notices.
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
