"""Runs the fuzzer's targets on seeded mutations of the corpus, without atheris or coverage.

atheris finds new paths, a few hundred inputs a second. This finds what only numbers find: a core
examines thousands of bodies a second, and a seed makes every run repeatable. Both use the same
targets and the same corpus. An input that breaks something is written to the directory given by
`--found`, named by its content.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from fuzz.decode import NUMBERS, examine, targets

CORPUS: Final = Path(__file__).parent / "corpus"

BYTES_MAX: Final = 800
"""Longest input; as for atheris in README.md."""

INTERESTING: Final = (
    b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xc0", b"\xc1", b"\xdf\xff\xff",
    b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n",
    b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: x\r\n",
    b"Origin: null\r\n", b"Content-Encoding: gzip\r\n", b"HTTP/1.0\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n",    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
)  # fmt: skip
"""Spliced in as they are: lengths at their limits, bytes that msgpack reserves, parts of HTTP."""

PROGRESS_SECONDS: Final = 10.0
FLIPS_MAX: Final = 4


def mutated(chance: Random, corpus: list[bytes]) -> bytes:
    """Return one input: two of the corpus joined, or one with a few of its bytes changed."""
    data = bytearray(chance.choice(corpus))
    head = data[:2]
    for _ in range(chance.randint(1, FLIPS_MAX)):
        at = chance.randrange(2, len(data)) if len(data) > 2 else len(data)
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = bytes((chance.randrange(256),))
            case 1:
                data[at:at] = chance.choice(INTERESTING)
            case 2:
                del data[at : at + chance.randint(1, 8)]
            case 3:
                other = chance.choice(corpus)
                data[at:] = other[chance.randrange(len(other)) :]
            case 4:
                data[at : at + 1] = (
                    bytes((data[at] ^ 1 << chance.randrange(8),)) if at < len(data) else b"\x01"
                )
            case _:
                piece = data[at : at + chance.randint(1, 32)]
                data[at:at] = piece
    if chance.random() < 0.2:
        head[1:2] = bytes((chance.randrange(256),))
    return bytes(head + data[2:])[:BYTES_MAX]


def main() -> int:
    """Run as many executions as asked; 1 if any input broke something."""
    options = argparse.ArgumentParser(prog="python -m fuzz.storm", description=__doc__)
    options.add_argument("--executions", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--found", type=Path, default=Path("found"))
    options.add_argument("--target", action="append", help="only targets whose name contains this")
    asked = options.parse_args()
    names = {number: one.__name__.removeprefix("examine_") for number, one in targets().items()}
    chosen = {
        number
        for number, name in names.items()
        if not asked.target or any(part in name for part in asked.target)
    }
    corpus = [
        data
        for data in map(Path.read_bytes, sorted(CORPUS.iterdir()))
        if data[0] % NUMBERS in chosen
    ]
    if not corpus:
        options.error(f"no target is called so; there are {', '.join(names.values())}")
    chance = Random(asked.seed)
    counted: Counter[str] = Counter()
    broken = 0
    began = told_at = time.monotonic()
    for done in range(1, asked.executions + 1):
        data = mutated(chance, corpus)
        counted[names[data[0] % NUMBERS]] += 1
        try:
            examine(data)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is a finding
            broken += 1
            asked.found.mkdir(parents=True, exist_ok=True)
            path = asked.found / f"crash-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"{path}: {type(problem).__name__}: {problem}", flush=True)
        if time.monotonic() - told_at > PROGRESS_SECONDS:
            told_at = time.monotonic()
            print(f"{done:,} executions, {done / (told_at - began):,.0f}/s", flush=True)
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(counted.items()))
    seconds = time.monotonic() - began
    print(f"{asked.executions:,} executions in {seconds:,.0f} s, {broken} broken: {counts}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
