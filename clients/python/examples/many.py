"""Fifty commands in ten sandboxes at once, by asyncio: the fastest way to try many things."""

import asyncio

from espalier import AsyncSandboxClient


async def main() -> None:
    async with AsyncSandboxClient() as client:
        first = await client.create_sandbox("host", setup="echo prepared > /tmp/ready", memory="256MiB")
        sandboxes = [first, *await first.fork(9)]
        command = "cat /tmp/ready; echo $N squared is $((N * N))"
        work = [sandboxes[number % 10].exec(command, env={"N": str(number)}) for number in range(50)]
        results = await asyncio.gather(*work)
        print(sum(result.succeeded for result in results), "succeeded; the last said:", results[-1].stdout.split("\n")[1])


asyncio.run(main())
