"""Engines and batches that the tests of vLLM's V1 runner cover, as plain data."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

#: ours on; without it vLLM is as it comes
PLUGIN = {"additional_config": {"ascend_spec": {}}}
#: method of a test -> options of ours, where vLLM's own fields don't say all
OPTIONS = {name: {"method": "suffix"} for name in ("suffix", "suffix_forgetful")}
K = 4
Request = dict[str, Any]
Cell = dict[str, Any]


def methods(models: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Speculative configs by the name of a test."""
    noisy = {"method": "draft_model", "model": models["noisy"], "num_speculative_tokens": 3}
    named = {
        "ngram": {
            "method": "ngram",
            "num_speculative_tokens": K,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
        # vLLM takes its own word for it only where arctic_inference is installed
        "suffix": {"method": "ngram", "num_speculative_tokens": 8},
        "suffix_forgetful": {
            "method": "ngram",
            "num_speculative_tokens": 8,
            "suffix_decoding_max_cached_requests": 0,
        },
        "draft_model": noisy,
        "draft_model_sampled": {**noisy, "draft_sample_method": "probabilistic"},
        "draft_model_self": {**noisy, "model": models["target"]},
        "eagle": {"method": "eagle", "model": models["eagle"], "num_speculative_tokens": 3},
        "eagle3": {"method": "eagle3", "model": models["eagle3"], "num_speculative_tokens": 3},
    }
    for name in ("Oracle", "Lookup", "Wrong"):
        path = f"vllm_cpu_drafters.{name}"
        named[name.lower()] = {"method": "custom_class", "model": path, "num_speculative_tokens": K}
    return named


def plugin(method: str) -> dict[str, Any]:
    """Ours on, with what the method takes."""
    return {"additional_config": {"ascend_spec": OPTIONS.get(method, {})}}


def target(method: str, models: dict[str, str]) -> str:
    return models["deep" if method == "eagle3" else "target"]


def prompts() -> list[list[int]]:
    """One that repeats itself, one long enough to be chunked, a short one, and two that share their first blocks."""
    numbers = random.Random(0)
    shared = [numbers.randrange(3, 512) for _ in range(70)]
    return [
        [1, 5, 6, 7, 5, 6, 7, 5, 6],
        [numbers.randrange(3, 512) for _ in range(50)],
        [4, 8],
        [*shared, 9, 10],
        [*shared, 11],
    ]


def greedy() -> list[Request]:
    return [{"prompt": prompt} for prompt in prompts()]


def sampled(**params: Any) -> list[Request]:
    params = {"temperature": 1.0, **params}
    return [{"prompt": prompt, "params": {**params, "seed": 10 + i}} for i, prompt in enumerate(prompts())]


def alternating(even: list[Request], odd: list[Request]) -> list[Request]:
    """A batch of both kinds."""
    return [odd[i] if i % 2 else each for i, each in enumerate(even)]


def covering_array(factors: dict[str, tuple]) -> list[Cell]:
    """Few cells in which each pair of values of two factors occurs; the same ones each time."""
    cells = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    missing = {pair for cell in cells for pair in pairs(cell)}
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(missing & pairs(cell)))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def pairs(cell: Cell) -> set[tuple]:
    return set(combinations(sorted((name, str(value)) for name, value in cell.items()), 2))


#: of an engine
ENGINE_FACTORS = {
    "method": ("ngram", "suffix", "draft_model", "eagle", "oracle"),
    "chunked_prefill": (False, True),
    "prefix_cache": (False, True),
    "scarce_blocks": (False, True),
    "k_by_batch_size": (False, True),
    "logprobs_mode": ("raw_logprobs", "processed_logprobs"),
}
#: of target and drafter together
LAYERS_WITH_KV = {"ngram": 2, "suffix": 2, "draft_model": 4, "eagle": 3, "oracle": 2}
#: of a batch; every engine runs them all
BATCH_FACTORS = {
    "processors": (False, True),
    "logprobs": (False, True),
    "aborts": (False, True),
    "sampled_neighbours": (False, True),
    "staggered": (False, True),
}


def engine_of(cell: Cell) -> dict[str, Any]:
    """Its engine, without method."""
    return {
        "max_num_batched_tokens": 32 if cell["chunked_prefill"] else 2048,
        "enable_prefix_caching": cell["prefix_cache"],
        # nine blocks of 32 tokens are fewer than four requests grow to
        "kv_cache_memory_bytes": 9 * LAYERS_WITH_KV[cell["method"]] * (16 << 10)
        if cell["scarce_blocks"]
        else 16 << 20,
        "max_model_len": 128,
        "logprobs_mode": cell["logprobs_mode"],
    }


def speculation_of(cell: Cell, models: dict[str, str]) -> dict[str, Any]:
    config = methods(models)[cell["method"]]
    if cell["k_by_batch_size"] and cell["method"] != "oracle":  # vLLM cannot change K for classes
        k = config["num_speculative_tokens"]
        config = {**config, "num_speculative_tokens_per_batch_size": [[1, 2, k], [3, 3, 1], [4, 64, 0]]}
    return {"speculative_config": config, **plugin(cell["method"])}


def processors(texts: list[list[int]]) -> list[dict[str, Any]]:
    """Parameters of five requests, one processor each. ``texts``: what they say without."""
    stops = {"ignore_eos": False, "stop_token_ids": list(range(3, 512, 7))}
    return [
        {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {**stops, "min_tokens": 12},
        {"bad_words_token_ids": [[texts[2][1]], texts[2][3:5], texts[2][8:11]]},
        {"allowed_token_ids": list(range(4, 512, 3))},
        {**stops, "min_tokens": 7, "repetition_penalty": 1.3},
    ]


def batch_of(cell: Cell, texts: list[list[int]]) -> list[Request]:
    requests = []
    for i, prompt in enumerate(prompts()):
        params: dict[str, Any] = dict(processors(texts)[i]) if cell["processors"] else {}
        if cell["logprobs"]:
            params["logprobs"] = i % 3
        request: Request = {"prompt": prompt}
        if cell["sampled_neighbours"] and i % 2:
            params |= {"temperature": 0.8, "seed": i, "top_k": 20, "top_p": 0.9}
        if cell["aborts"] and i in (0, 3):
            request["aborted_after"] = 9
        if cell["staggered"]:
            request["arrives"] = 3 * i
        requests.append({**request, "params": params})
    return requests
