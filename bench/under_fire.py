"""`python3 course.py bench under-fire`: clients that leave, send rubbish or read slowly, and a check of what is left.

Each client repeats one act, chosen at random, until the time is over:

    stay      a greedy stream, whose text must be the one that the engine gives alone
    leave     a stream whose connection is closed after a few bytes
    rubbish   malformed JSON, a wrong field, or a huge prompt
    slow      a stream of which a byte is read now and then, and then nothing

At the end no block may be held, no request may be left, and `check()` of pool and scheduler must pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PROMPTS = [f"Explain block {i} of a KV cache to a colleague." for i in range(12)]
TOKENS = 24


@dataclass
class Tally:
    """What the clients met: counts by outcome, tokens of complete replies, and replies that were wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    good_tokens: int = 0
    wrong: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--model", default="smollm2-135m", help="a name, a hub id or a folder (smollm2-135m)")
    parser.add_argument("--clients", type=int, default=200, metavar="N", help="clients at once (200)")
    parser.add_argument("--seconds", type=float, default=60, metavar="S", help="how long they go on (60)")


def run(args: argparse.Namespace) -> int:
    """Serve, attack, check and print; return the exit status."""
    from paged_ref.generation.llm import LLM

    llm = LLM(args.model, num_blocks=512)
    report = asyncio.run(attack(llm, args.clients, args.seconds))
    print(json.dumps(report, indent=2))
    return 1 if report["wrong"] or report["blocks_held"] else 0


async def attack(llm: Any, clients: int, seconds: float) -> dict[str, Any]:
    """Serve `llm` to so many clients for some seconds and return what was found; nothing else may use `llm`.

    Raises:
        AssertionError: the pool or the scheduler is damaged.
    """
    import socket

    import uvicorn

    from paged_ref.sampling.params import SamplingParams
    from paged_ref.server.app import Settings, make_app

    expected = {p: llm.generate([p], SamplingParams(max_tokens=TOKENS))[0].outputs[0].text for p in PROMPTS}
    app = make_app(llm, Settings("m", max_queue=clients // 4))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", log_config=None))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    tally, port, end = Tally(), listener.getsockname()[1], time.monotonic() + seconds
    halves: list[int] = []

    async def watch_memory() -> None:
        await asyncio.sleep(seconds / 2)
        halves.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    await asyncio.gather(
        watch_memory(), *(_client(random.Random(i), port, end, expected, tally) for i in range(clients))
    )
    deadline = time.monotonic() + 60
    while (llm.scheduler.has_work or app.state.service.engine.reserved) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    server.should_exit = True
    await task
    listener.close()
    llm.pool.check()
    llm.scheduler.check()
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - halves[0]) / 1024
    return {
        "outcomes": dict(sorted(tally.outcomes.items())),
        "wrong": tally.wrong,
        "good_tokens_per_second": round(tally.good_tokens / seconds, 1),
        "blocks_held": llm.pool.num_used,
        "requests_left": len(llm.scheduler.running) + len(llm.scheduler.waiting),
        "reserved": app.state.service.engine.reserved,
        "memory_growth_in_second_half_mib": round(growth, 1),
    }


async def _client(rng: random.Random, port: int, end: float, expected: dict[str, str], tally: Tally) -> None:
    while time.monotonic() < end:
        act = rng.choices(("stay", "leave", "rubbish", "slow"), (6, 3, 2, 1))[0]
        prompt = rng.choice(PROMPTS)
        try:
            status, text, complete = await asyncio.wait_for(_request(rng, port, act, prompt), 120)
        except (OSError, asyncio.IncompleteReadError):
            tally.outcomes[f"{act}: connection closed"] += 1
            continue
        tally.outcomes[f"{act}: {status}"] += 1
        if act == "stay" and status == 200:
            if complete and text == expected[prompt]:
                tally.good_tokens += TOKENS
            else:
                tally.wrong.append(f"{prompt!r}: {text!r}, complete: {complete}")
        if status == 429:
            await asyncio.sleep(rng.uniform(0.2, 1.0))


def _body(rng: random.Random, act: str, prompt: str) -> bytes:
    if act == "rubbish":
        return rng.choice((b"{", b'{"prompt": 7}', b"\x00" * 999, b'{"prompt": "' + b"a " * 400_000 + b'"}'))
    tokens = TOKENS if act == "stay" else 200
    return json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}).encode()


async def _request(rng: random.Random, port: int, act: str, prompt: str) -> tuple[int, str, bool]:
    """Send one request; returns the status, the text, and whether the stream was complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = _body(rng, act, prompt)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        if act == "leave":
            await reader.read(rng.randrange(1, 300))
            return status, "", False
        if act == "slow":
            for _ in range(5):
                await reader.read(1)
                await asyncio.sleep(0.1)
            return status, "", False
        lines = (await reader.read()).decode().splitlines()
        events = [line[6:] for line in lines if line.startswith("data: ")]
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
        text = "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))
        return status, text, events[-1:] == ["[DONE]"]
    finally:
        writer.close()
