"""The session that docs/protocol.md spells out byte by byte, said to a real shard."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from uuid import uuid4

from maitred import logs
from maitred.node.shard import Place, Shard
from maitred.protocol.frames import HEADER_BYTES
from maitred.settings import Node
from maitred.surroundings import Surroundings

DOCUMENT = Path(__file__).parent.parent / "docs" / "protocol.md"
SECONDS = 10


def session() -> list[tuple[str, bytes | None]]:
    """What is said in which direction; None for bytes that the page leaves open."""
    text = DOCUMENT.read_text()
    block = re.search(r"```text\n(-> .*?)```", text, re.DOTALL)
    assert block
    said: list[tuple[str, str]] = []
    for line in block[1].splitlines():
        # The hexadecimal part ends where two spaces begin the remark.
        direction, rest = line[:2].strip(), line[2:].strip()
        digits = re.split(r"\s{2,}", rest)[0]
        if direction:
            said.append((direction, digits))
        else:
            said[-1] = (said[-1][0], said[-1][1] + digits)
    return [
        (direction, None if "…" in digits else bytes.fromhex(digits)) for direction, digits in said
    ]


async def replay() -> int:
    settings = Node()
    loop = asyncio.get_running_loop()
    # A port that is free now; the shard binds it again at once.
    probe = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    place = Place(uuid4(), 0, 1, "127.0.0.1", port, (port,), ())
    shard = Shard(place, settings, Surroundings.real(), logs.silent())
    await shard.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = 0
    for direction, expected in session():
        if direction == "->":
            assert expected is not None
            writer.write(expected)
            continue
        header = await reader.readexactly(HEADER_BYTES)
        answer = header + await reader.readexactly(int.from_bytes(header[5:], "big"))
        assert expected is None or answer == expected
        answers += 1
    writer.close()
    await writer.wait_closed()
    shard.close()
    return answers


def test_the_session_of_the_page() -> None:
    answers = asyncio.run(asyncio.wait_for(replay(), SECONDS))
    assert answers == 3
