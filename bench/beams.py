"""Record the trees of beam searches of the real model in bench/results/beams.json.

Chapter 4 replays these trees to count blocks: the blocks that a search shares depend only on its tree, so the model
need not run again. Prompt and output have ShareGPT's mean lengths (161 and 338 tokens). A step is a string of digits:
the i-th digit is the index of the beam in the previous step that beam i extends.
"""

import json
from pathlib import Path

import transformers

from paged_ref import LLM, SamplingParams
from paged_ref.model.hf_model import PagedModel
from paged_ref.scheduling.request import Request

RESULTS = Path(__file__).parent / "results" / "beams.json"
WIDTHS, PROMPT_TOKENS, NEW_TOKENS = (2, 4, 6), 161, 338
QUESTIONS = (
    "I moved into a flat with a small balcony that faces north and gets about two hours of sun in the evening. I would "
    "like to grow something that I can eat, and I am away from home for three days every other week, so nobody can "
    "water the plants on these days. Last year I tried tomatoes and basil, and both died: the tomatoes had leaves and "
    "no fruit, the basil was eaten by snails in one night although the balcony is on the third floor. I have four "
    "boxes of sixty centimetres, a bag of earth from last year, and about fifty euros. What should I plant, in which "
    "month, and how can I keep it alive while I am away? Please give me a plan with a list of what to buy, and say "
    "which of the plants is the most likely to survive a beginner. Also tell me whether the old earth can be used.",
    "We run a small library with two rooms, one for children and one for adults, and we lend about three hundred "
    "books in a week. Until now a member writes the title and the date on a card, and one of us puts the card into a "
    "wooden box. Twice a year we look for cards that are too old and write letters. It works, but it takes a whole "
    "weekend, and some letters go to people who brought their book back long ago. A friend says that we should use a "
    "database. I know how to use a spreadsheet and a little Python, and the computer in the library is ten years old. "
    "Explain what tables we would need, which columns they have, how we would find the books that are late, and what "
    "could go wrong when we move from the box of cards to the computer. Do not assume that we can buy anything.",
    "Here is the beginning of a story that my daughter wrote for school. A lighthouse keeper counts the ships that "
    "pass in the night and writes their number into a book. One night no ship comes. The next night no ship comes "
    "either. On the third night he sees a light on the water, but it does not move, and in the morning there is a "
    "second lighthouse on the horizon where there was none before. He takes his boat and rows to it. The door is open, "
    "and on the table lies a book that looks like his own. She does not know how to go on, and the story has to be "
    "finished by Monday. Please suggest three different endings, one that is sad, one that is funny and one that "
    "explains everything, and tell her for each what she would have to change in the beginning to make it fit well.",
)


def main() -> None:
    """Run all searches in one batch, step by step, and record their trees."""
    transformers.utils.logging.disable_progress_bar()
    model = PagedModel.load("smollm2-135m", dtype="float32")
    llm = LLM(model, num_blocks=2048, enable_prefix_caching=False)
    runs: list[tuple[Request, int, list[str]]] = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        tokens = model.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        if len(tokens) < PROMPT_TOKENS:
            raise ValueError(f"a question has {len(tokens)} tokens, but needs at least {PROMPT_TOKENS}")
        for width in WIDTHS:
            sampling = SamplingParams(max_tokens=NEW_TOKENS, beam_width=width, ignore_eos=True)
            runs.append((llm.add_request(tokens[-PROMPT_TOKENS:], sampling), width, []))
    while llm.scheduler.has_work:
        before = [{tuple(s.token_ids): i for i, s in enumerate(request.sequences)} for request, _, _ in runs]
        llm.step()
        for (request, _, steps), beams in zip(runs, before, strict=True):
            grown = [tuple(sequence.token_ids[:-1]) for sequence in request.sequences]
            if grown and all(tokens in beams for tokens in grown):
                steps.append("".join(str(beams[tokens]) for tokens in grown))
    rows = [{"width": width, "steps": " ".join(steps)} for _, width, steps in runs]
    RESULTS.write_text(json.dumps({"prompt_tokens": PROMPT_TOKENS, "searches": rows}, indent=1) + "\n")
    for _, width, steps in runs:
        print(width, " ".join(steps)[:40])


if __name__ == "__main__":
    main()
