"""Ordinary asyncio code in a simulated world: a server is killed, and its client finds out."""

import asyncio

from maitred.simulation import World

PORT = 7411


async def serve() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(b"hello " + line)

    server = await asyncio.start_server(greet, "0.0.0.0", PORT)  # noqa: S104 - a simulated host
    await server.serve_forever()


async def call(address: str) -> None:
    reader, writer = await asyncio.open_connection(address, PORT)
    loop = asyncio.get_running_loop()
    for number in range(100):
        writer.write(f"{number}\n".encode())
        try:
            answer = await reader.readline()
        except ConnectionResetError:
            answer = b""
        if not answer:
            print(f"{loop.time():8.3f} s: the server is gone")
            return
        print(f"{loop.time():8.3f} s: {answer.decode().strip()}")
        await asyncio.sleep(600)


async def story(world: World) -> None:
    server = world.host("server").spawn(serve)
    await asyncio.sleep(1)
    client = world.host("client").spawn(call(world.host("server").address))
    await asyncio.sleep(1_500)
    server.kill()
    await client.wait()


with World(seed=1) as world:
    world.run(story(world))
    print(f"{world.loop.time():.0f} virtual seconds, {world.loop.events} events")

# Prints:
# |    1.001 s: hello 0
# |  601.002 s: hello 1
# | 1201.002 s: hello 2
# | 1801.002 s: the server is gone
# | 1801 virtual seconds, 43 events
