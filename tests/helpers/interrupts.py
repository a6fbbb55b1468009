"""Run by test_llm_failures.py in a process of its own: Ctrl-C reaches `generate` again and again.

Prints one line, "N interrupts, the engine works", or fails.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

from paged_ref import LLM, SamplingParams
from tests.helpers.tiny import make_tiny

# A shell that starts us in the background makes us deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

tiny = make_tiny()
prompts = [[7 * i + j for j in range(9 + i)] for i in range(12)]
expected = [tiny.generate(prompt, 12) for prompt in prompts]
rng = random.Random(5)
interrupts = 0


def check(llm: LLM) -> None:
    llm.scheduler.check()
    if llm.pool.num_used or llm.scheduler.has_work:
        raise SystemExit(f"{llm.pool.num_used} blocks are held, waiting and running: {vars(llm.scheduler)}")


def works(llm: LLM) -> None:
    outputs = llm.generate(prompts, SamplingParams(max_tokens=12))
    if [output.outputs[0].token_ids for output in outputs] != expected:
        raise SystemExit("other tokens after an interrupt")
    check(llm)


for preemption in ("recompute", "swap"):
    llm = LLM(tiny.paged, num_blocks=14, block_size=4, preemption=preemption)

    # Inside the model: in the first and the second layer, in every step from the first to the tenth.
    for layer in (0, 1):
        for call in range(1, 11):
            left = call

            def interrupt(*_: object) -> None:
                global left
                left -= 1
                if left == 0:
                    signal.raise_signal(signal.SIGINT)

            hook = tiny.paged.model.model.layers[layer].mlp.register_forward_pre_hook(interrupt)
            try:
                llm.generate(prompts, SamplingParams(max_tokens=12, n=2, temperature=1.0, seed=1))
            except KeyboardInterrupt:
                interrupts += 1
            else:
                raise SystemExit("the interrupt was lost")
            finally:
                hook.remove()
            check(llm)
    works(llm)

    # Anywhere: from another thread, after a random time.
    llm = LLM(tiny.paged, num_blocks=130, block_size=4, preemption=preemption)
    for _ in range(60):
        after = rng.uniform(0.0, 0.08)
        thread = threading.Thread(
            target=lambda after=after: (time.sleep(after), os.kill(os.getpid(), signal.SIGINT))
        )
        try:
            thread.start()
            llm.generate(prompts, SamplingParams(max_tokens=200, beam_width=2))
            thread.join()
            time.sleep(0.1)
        except KeyboardInterrupt:
            interrupts += 1
        thread.join()
        check(llm)
    works(llm)

print(f"{interrupts} interrupts, the engine works")
