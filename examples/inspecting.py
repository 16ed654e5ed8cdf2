"""What happened to a task, and which ones failed: status, history, lists, and acting on them.

The same file is the app that `maitred worker inspecting:app` serves, and the program that looks.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from maitred import App
from maitred.errors import TaskFailed

app = App("shop")


@app.handler("mails", retries=1, backoff=0.01, hide=["code"])
async def mail(to: str, code: str = "") -> None:
    raise ConnectionError(f"{to} does not answer to {code}")


@app.handler("invoices", delay=3600)
async def invoice(order: int) -> int:
    return order


async def look() -> None:
    async with app:
        task = await mail.enqueue("ann@example.com", code="1234")
        with contextlib.suppress(TaskFailed):
            await task.result(timeout=30)
        status = await task.status()
        print("state:", status.state, "after", status.attempts, "attempts at", status.worker)
        print("why:", status.error, "-", status.message)
        print("arguments:", status.arguments)
        for event in await task.history():  # `print` of the whole shows it as a timeline
            print("history:", *filter(None, (event.what, event.attempt, event.error)))

        await invoice.enqueue_many([invoice.call(order) for order in range(3)])
        async for one in app.tasks(state=["delayed", "dead"], since=timedelta(hours=1)):
            print("listed:", one.queue, one.state)
        found = [one.id async for one in invoice.tasks(argument=("0", 2))]
        print("found:", len(found))
        due = await invoice.change_tasks("run-now", reason="the books are closed")
        print("run now:", due.done)

        again = await task.again("ann@example.com", code="5678")  # with another code
        await task.drop("a typo in the code")
        with contextlib.suppress(TaskFailed):
            await again.result(timeout=30)
        counted = await app.change_tasks("retry", "mails", error="ConnectionError", dry_run=True)
        print("would be retried:", counted.matched)


def main() -> None:
    with tempfile.TemporaryDirectory() as data, contextlib.ExitStack() as processes:
        maitred = [sys.executable, "-m", "maitred"]
        node = processes.enter_context(
            subprocess.Popen(  # noqa: S603 - it is our own command
                [*maitred, "up", "--json", "--shards", "1", "--port", "0", "--data", data],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        processes.callback(node.terminate)
        assert node.stdout  # noqa: S101
        url = os.environ["MAITRED_URL"] = json.loads(node.stdout.readline())["url"]
        worker = processes.enter_context(
            subprocess.Popen(  # noqa: S603 - it is our own command
                [*maitred, "worker", "inspecting:app", "--name", "desk"],
                cwd=Path(__file__).parent,
                stderr=subprocess.DEVNULL,
            )
        )
        processes.callback(worker.terminate)
        asyncio.run(look())
        for action in (
            ["cancel", "shop/invoices", "--state", "delayed", "--yes"],
            ["drop", "shop/mails", "--error", "ConnectionError", "--yes"],
        ):
            command = [*maitred, "admin", "task", *action, "--url", url]
            done = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603
            print(f"{action[0]}:", done.stdout.strip())


if __name__ == "__main__":
    main()

# Prints:
# | state: dead after 2 attempts at desk
# | why: ConnectionError - ann@example.com does not answer to [hidden]
# | arguments: {'to': 'ann@example.com', 'code': '[hidden]'}
# | history: added
# | history: started 1
# | history: failed 1 ConnectionError
# | history: started 2
# | history: failed 2 ConnectionError
# | history: dead ConnectionError
# | listed: mails dead
# | listed: invoices delayed
# | listed: invoices delayed
# | listed: invoices delayed
# | found: 1
# | run now: 3
# | would be retried: 1
# | cancel: 0 tasks cancelled, or told to stop.
# | drop: 1 task dropped.
