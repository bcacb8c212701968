"""A client of ``vllm serve``, as a user would write one. Runs where the package openai is."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from openai import AsyncOpenAI

PROMPTS = [
    "1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2,",
    "The days of the week are Monday, Tuesday, Wednesday,",
]
#: chunks after which a client goes away
PATIENCE = 3


def drive(url: str, rounds: int) -> dict[str, Any]:
    """Rounds of eight streams at once, every second one of which is broken off.

    Returns:
        "texts": of the streams that were read to the end, by prompt; "broken off": how many were not; "whole": the
        same texts without streaming; "counters": vLLM's of speculative decoding.
    """
    return asyncio.run(_drive(url, rounds))


async def _drive(url: str, rounds: int) -> dict[str, Any]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = (await client.models.list()).data[0].id
        options = {"model": model, "max_tokens": 32, "temperature": 0.0}
        whole = [
            (await client.completions.create(prompt=each, **options)).choices[0].text for each in PROMPTS
        ]
        texts: list[list[str]] = [[] for _ in PROMPTS]
        broken_off = 0
        for _ in range(rounds):
            streams = [
                _stream(client, PROMPTS[i // 2 % 2], options, PATIENCE if i % 2 else None) for i in range(8)
            ]
            for i, text in enumerate(await asyncio.gather(*streams)):
                if i % 2:
                    broken_off += 1
                else:
                    texts[i // 2 % 2].append(text)
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    counters = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith(("vllm:spec_decode_num", "vllm:num_requests_running")):
            counters[name.partition("{")[0].removeprefix("vllm:")] = float(value)
    return {"texts": texts, "broken off": broken_off, "whole": whole, "counters": counters}


async def _stream(client: AsyncOpenAI, prompt: str, options: dict[str, Any], patience: int | None) -> str:
    text, chunks = "", 0
    stream = await client.completions.create(prompt=prompt, stream=True, **options)
    async for chunk in stream:
        text += chunk.choices[0].text
        chunks += 1
        if chunks == patience:
            await stream.close()
            break
    return text
