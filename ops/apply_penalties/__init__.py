"""Repetition, presence and frequency penalties, row by row as if tokens were decoded one at a time.

Meaning and order are those of vLLM's sampler (V1) and of OpenAI's API for presence and frequency. Under
speculation the history of a row is what stands before it: the committed tokens and the drafts of earlier rows.
"""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.filter_logits import check_rows
from ascend_spec_ops.selection import Implementation


def apply_penalties(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    repetition_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
) -> None:
    """Lower, in place, the logits of tokens that a row's request has used.

    Request ``b`` has ``n = cu[b] - cu[b-1]`` drafts and ``n + 1`` logits rows from row ``cu[b-1] + b`` on. Row
    ``j`` sees the first ``num_tokens[b]`` tokens of slot ``slots[b]`` and drafts ``0 .. j-1``, not draft ``j``,
    which it judges. Prompt are the first ``num_prompt_tokens[b]`` tokens, output is the rest and the drafts.

    * Repetition: a token of prompt or output has its logit divided if positive, else multiplied.
    * Then frequency, once for each time a token is in the output; then presence, once if it is: subtracted.

    Args:
        logits: ``[N + B, V]`` float32, float16 or bfloat16; rows contiguous, not overlapping. Computed in float32.
        token_ids: ``[S, L]`` int32, rows contiguous, ``L`` below 2**24.
        slots: ``[B]`` int64 or int32, below ``S``; negative: the request's rows are left alone.
        num_prompt_tokens: ``[B]`` int32.
        num_tokens: ``[B]`` int32, committed tokens, prompt included; more than ``L`` counts as ``L``.
        draft_token_ids: ``[N]`` int32. A negative id ends the request's drafts: later rows see those before it.
        cu_num_draft_tokens: ``[B]`` int32, inclusive cumulative counts; the last is ``N``.
        repetition_penalty: ``[B]`` float32, above 0; 1 is none.
        presence_penalty: ``[B]`` float32; 0 is none.
        frequency_penalty: ``[B]`` float32; 0 is none.

    Ids below 0 or from ``V`` on (a vocabulary padded beyond the logits) count for nothing. On CUDA and Ascend the
    histories take a table of ``[B, V]`` int32 while the call lasts.

    Raises:
        RuntimeError: shapes, dtypes or strides are not as above; on the CPU also slots from ``S`` on, and counts
            that fall or do not end at ``N``.
    """
    arguments = (
        logits, token_ids, slots, num_prompt_tokens, num_tokens, draft_token_ids, cu_num_draft_tokens,
        repetition_penalty, presence_penalty, frequency_penalty,
    )  # fmt: skip
    check_arguments(*arguments)
    torch.ops.ascend_spec.apply_penalties(*arguments)


def check_arguments(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    repetition_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
) -> None:
    """The contract, from shapes, strides and dtypes alone; also the operator's shape function."""
    check_rows(logits)
    check = torch._check
    num_requests, num_drafts = cu_num_draft_tokens.shape[0], draft_token_ids.shape[0]
    check(
        logits.shape[0] == num_requests + num_drafts,
        lambda: (
            f"{logits.shape[0]} logits rows for {num_drafts} drafts and {num_requests} requests: "
            f"there must be {num_requests + num_drafts}"
        ),
    )
    check(
        token_ids.dim() == 2
        and token_ids.dtype == torch.int32
        and token_ids.shape[1] < 1 << 24
        and (token_ids.shape[1] < 2 or token_ids.stride(1) == 1),
        lambda: (
            "token_ids must be [S, L < 2**24] int32 with contiguous rows, "
            f"not {list(token_ids.shape)} {token_ids.dtype}"
        ),
    )
    integers, floats = (torch.int32,), (torch.float32,)
    for name, tensor, dtypes, length in (
        ("slots", slots, (torch.int64, torch.int32), num_requests),
        ("num_prompt_tokens", num_prompt_tokens, integers, num_requests),
        ("num_tokens", num_tokens, integers, num_requests),
        ("draft_token_ids", draft_token_ids, integers, num_drafts),
        ("cu_num_draft_tokens", cu_num_draft_tokens, integers, num_requests),
        ("repetition_penalty", repetition_penalty, floats, num_requests),
        ("presence_penalty", presence_penalty, floats, num_requests),
        ("frequency_penalty", frequency_penalty, floats, num_requests),
    ):
        check(
            tensor.shape == (length,) and tensor.dtype in dtypes and tensor.is_contiguous(),
            lambda name=name, tensor=tensor, dtypes=dtypes, length=length: (
                f"{name} must be [{length}] {' or '.join(map(str, dtypes))}, contiguous, "
                f"not {list(tensor.shape)} {tensor.dtype}"
            ),
        )


selection.define(
    "apply_penalties(Tensor(a!) logits, Tensor token_ids, Tensor slots, Tensor num_prompt_tokens, "
    "Tensor num_tokens, Tensor draft_token_ids, Tensor cu_num_draft_tokens, Tensor repetition_penalty, "
    "Tensor presence_penalty, Tensor frequency_penalty) -> ()",
    check_arguments,
)
selection.implement(
    "apply_penalties", "cpu", Implementation("numba", "ascend_spec_ops.apply_penalties.cpu:apply_penalties")
)
for _device in ("cuda", "npu"):
    selection.implement(
        "apply_penalties",
        _device,
        Implementation("triton", "ascend_spec_ops.apply_penalties.launch:apply_penalties"),
    )
