"""What a case changes in its process before the engine starts. Each returns how to undo it.

The broken copies among them show that the tests can fail.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

logger = logging.getLogger("vllm.ascend_spec")  # the one whose lines go into the answer
Undo = Callable[[], Any]


def _patched(target: str, replacement: Any) -> Undo:
    patch = mock.patch(target, replacement)
    patch.start()
    return patch.stop


def without_the_wrap() -> Undo:
    """As if the entry point had been left out: only the hook that vLLM has for extensions can attach."""
    from ascend_spec.vllm import plugin

    plugin.unregister()
    return plugin.register


def a_sampler_of_another_vllm() -> Undo:
    """The method that is replaced takes other arguments."""

    def _sample_random(self: Any, logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    return _patched("vllm.v1.worker.gpu.sample.sampler.Sampler._sample_random", _sample_random)


def drafts_in_the_log() -> Undo:
    """Of every request, its history and what was proposed for it."""
    from ascend_spec.vllm.plugin import logger
    from ascend_spec.vllm.v2_speculator import V2Speculator

    stock = V2Speculator.propose

    @functools.wraps(stock)
    def propose(self: Any, input_batch: Any, *rest: Any, **options: Any) -> torch.Tensor:
        drafts = stock(self, input_batch, *rest, **options)
        num_sampled, states = rest[4], self.req_states
        for place, slot in enumerate(input_batch.idx_mapping.tolist()):
            if num_sampled[place] > 0:
                history = states.all_token_ids.gpu[slot, : states.total_len.gpu[slot]]
                logger.info("drafts %s", [history.tolist(), drafts[place].tolist()])
        return drafts

    return _patched("ascend_spec.vllm.v2_speculator.V2Speculator.propose", propose)


def a_drafter_that_fails() -> Undo:
    def propose(self: Any, batch: Any) -> Any:
        raise ValueError("no drafts today")

    return _patched("ascend_spec.drafters.NgramDrafter.propose", propose)


def attention_beside_stock() -> Undo:
    """Of each call of a layer that ours was put on, what ``beside_stock`` tells."""
    from attention_beside_stock import beside_stock

    stack = contextlib.ExitStack()
    stack.enter_context(beside_stock(lambda step: logger.info("attention %s", json.dumps(step))))
    return stack.close


def tree_seams_in_the_log() -> Undo:
    from tree_seams import in_the_log

    stack = contextlib.ExitStack()
    stack.enter_context(in_the_log(lambda *told: logger.info("seam %s", json.dumps(told))))
    return stack.close


def drafts_left_out() -> Undo:
    """Where vLLM's drafter is not confident: of each step, how many drafts each request had, and how many are left."""
    from adaptive_on_cpu import drafts_left_out

    stack = contextlib.ExitStack()
    stack.enter_context(drafts_left_out(lambda *told: logger.info("verified %s", json.dumps(told))))
    return stack.close


def a_drafter_that_fails_once() -> Undo:
    from ascend_spec.drafters import NgramDrafter

    stock, calls = NgramDrafter.propose, []

    def propose(self: Any, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 1:
            raise ValueError("not now")
        return stock(self, batch)

    return _patched("ascend_spec.drafters.NgramDrafter.propose", propose)


def top_k_without_triton() -> Undo:
    """The interpreter cannot run vLLM's kernel for top-k and top-p; on a CPU without Triton vLLM uses torch."""
    from vllm.v1.sample.ops import topk_topp_sampler

    def in_torch(logits: torch.Tensor, k: Any, p: Any, has_topp_only_rows: bool) -> torch.Tensor:
        return topk_topp_sampler.apply_top_k_top_p_pytorch(logits, k, p)

    return _patched("vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p_triton", in_torch)


# ---- broken copies
def _broken_attention(name: str) -> Undo:
    from attention_beside_stock import BROKEN

    patch = BROKEN[name]()
    patch.start()
    return patch.stop


def broken_keys_read_by_block() -> Undo:
    return _broken_attention("keys_read_by_block")


def broken_last_key_unseen() -> Undo:
    return _broken_attention("last_key_unseen")


def broken_attached_each_time() -> Undo:
    def attach_once(worker: Any) -> None:
        from ascend_spec.vllm.attach import attach

        attach(worker, worker.vllm_config.additional_config["ascend_spec"])

    return _patched("ascend_spec.vllm.plugin.attach_once", attach_once)


def _with_verify(change: Callable[..., torch.Tensor]) -> Undo:
    """``change(verify, *arguments)`` in place of ``verify(*arguments)``."""
    import ascend_spec_ops

    verify = ascend_spec_ops.verify
    return _patched("ascend_spec_ops.verify", lambda *arguments: change(verify, *arguments))


def broken_first_draft_unchecked() -> Undo:
    def verify(verify: Any, logits: torch.Tensor, drafts: torch.Tensor, *rest: Any) -> torch.Tensor:
        output = verify(logits, drafts, *rest)
        if not len(drafts):
            return output
        ends = rest[0].long()
        starts = torch.nn.functional.pad(ends, (1, 0))[:-1]
        has_drafts = ends > starts
        first = drafts[starts.clamp(max=len(drafts) - 1)]
        output[:, 1] = torch.where(has_drafts & (first >= 0), first, output[:, 1])
        return output

    return _with_verify(verify)


def broken_drafts_taken_as_deterministic() -> Undo:
    return _with_verify(lambda verify, *arguments: verify(*arguments[:7]))


def broken_draft_temperature_forgotten() -> Undo:
    def verify(verify: Any, *arguments: Any) -> torch.Tensor:
        return verify(*arguments[:8], torch.ones_like(arguments[8]))

    return _with_verify(verify)


def broken_drafts_counted_on_the_host() -> Undo:
    """Which spreads those that are left evenly."""

    def verify(verify: Any, *arguments: Any) -> torch.Tensor:
        ends = arguments[2]
        places = torch.arange(1, len(ends) + 1)
        even = (len(arguments[1]) * places // len(ends)).to(ends.dtype)
        return verify(*arguments[:2], even, *arguments[3:])

    return _with_verify(verify)


def broken_seeds_by_place() -> Undo:
    """A request's noise depends on where it stands in the batch."""

    def verify(verify: Any, *arguments: Any) -> torch.Tensor:
        seeds = torch.arange(len(arguments[4]))
        return verify(*arguments[:4], seeds, *arguments[5:])

    return _with_verify(verify)


def broken_history_of_a_neighbour() -> Undo:
    from ascend_spec.drafters import NgramDrafter

    propose = NgramDrafter.propose

    def shifted(self: Any, batch: Any) -> Any:
        draft = propose(self, batch)
        return type(draft)(token_ids=draft.token_ids.roll(1, 0))

    return _patched("ascend_spec.drafters.NgramDrafter.propose", shifted)
