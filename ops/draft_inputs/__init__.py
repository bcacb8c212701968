"""The rows of a verification or draft step, from device tensors alone: ids, positions, slots, lengths.

Source: what ``prepare_inputs`` of vLLM's model runner and the step update of its draft proposer compute, in
one pass and without a host copy.
"""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation


def draft_inputs(
    last_token_ids: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    max_model_len: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of the target for the rows ``[last token, draft_1 .. draft_k]`` of every request.

    Row ``j`` of request ``b`` is row ``cu_num_draft_tokens[b - 1] + b + j`` of the result. It stands at
    position ``p = num_tokens[b] - 1 + j``, in slot ``block_table[b, p // block_size] * block_size +
    p % block_size``. With no drafts at all (``N = 0``) these are the inputs of one draft step on ``B`` rows.

    * An empty token (-1) gets id 0 and slot -1: it fills its row, and its K/V is not written.
    * A row at ``max_model_len`` or beyond gets id 0, position 0 and slot -1. This lets a draft loop run past
      the end with fixed shapes. Rows to be *verified* must not go there (at most ``max_model_len -
      num_tokens`` drafts): attention places a request's rows by ``seq_lens``, which stops at the limit.
    * A request with ``num_tokens`` 0 is padding: id 0, position 0, slot -1, length 0.

    Args:
        last_token_ids: ``[B]`` int32, the last committed token, whose K/V is not written yet.
        draft_token_ids: ``[N]`` int32, request by request; -1 is an empty one.
        cu_num_draft_tokens: ``[B]`` int32, inclusive cumulative counts; the last is ``N``.
        num_tokens: ``[B]`` int32, committed length in tokens, the last token included.
        block_table: ``[B, M]`` int32 block ids; rows contiguous; covers ``max_model_len`` tokens.
        block_size: tokens a block.
        max_model_len: in tokens, below 2**24. Slot numbers must be below 2**31.

    Returns:
        ``input_ids`` ``[N + B]`` int32; ``positions`` ``[N + B]`` int64; ``slot_mapping`` ``[N + B]`` int64;
        ``seq_lens`` ``[B]`` int32: KV lengths with the new rows, at most ``max_model_len``.

    Raises:
        ValueError: ``block_size`` or ``max_model_len`` out of range.
        RuntimeError: wrong shapes, dtypes or strides; on the CPU also counts that fall or do not end at ``N``.
    """
    tensors = (last_token_ids, draft_token_ids, cu_num_draft_tokens, num_tokens, block_table)
    _check(*tensors, block_size, max_model_len)
    return torch.ops.ascend_spec.draft_inputs(*tensors, block_size, max_model_len)


def _check(
    last_token_ids: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    max_model_len: int,
) -> None:
    torch._check_value(block_size >= 1, lambda: f"draft_inputs: block_size={block_size}; choose 1 or more")
    torch._check_value(
        1 <= max_model_len < 1 << 24,
        lambda: f"draft_inputs: max_model_len={max_model_len}; choose 1 to 2**24 - 1",
    )
    num_requests = last_token_ids.shape[0]
    vectors = {
        "last_token_ids": last_token_ids,
        "draft_token_ids": draft_token_ids,
        "cu_num_draft_tokens": cu_num_draft_tokens,
        "num_tokens": num_tokens,
    }
    for name, value in vectors.items():
        torch._check(
            value.dtype == torch.int32
            and value.dim() == 1
            and value.is_contiguous()
            and (value.shape[0] == num_requests or name == "draft_token_ids"),
            lambda name=name, value=value: (
                f"draft_inputs: {name} is {list(value.shape)} {value.dtype}; pass contiguous int32, "
                + ("[N]" if name == "draft_token_ids" else f"[{num_requests}] as last_token_ids")
            ),
        )
    torch._check(
        block_table.dtype == torch.int32 and block_table.dim() == 2 and block_table.shape[0] == num_requests,
        lambda: (
            f"draft_inputs: block_table is {list(block_table.shape)} {block_table.dtype}; "
            f"pass [{num_requests}, M] int32"
        ),
    )
    torch._check(
        block_table.shape[1] * block_size >= max_model_len,
        lambda: (
            f"draft_inputs: block_table has {block_table.shape[1]} blocks of {block_size} tokens a row, "
            f"fewer than max_model_len={max_model_len} needs; widen the table or lower max_model_len"
        ),
    )
    torch._check(
        block_table.shape[1] < 2 or block_table.stride(1) == 1,
        lambda: (
            f"draft_inputs: block_table has stride {block_table.stride(1)} in a row; make rows contiguous"
        ),
    )


def _fake(
    last_token_ids: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    num_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    max_model_len: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    tensors = (last_token_ids, draft_token_ids, cu_num_draft_tokens, num_tokens, block_table)
    _check(*tensors, block_size, max_model_len)
    num_rows = last_token_ids.shape[0] + draft_token_ids.shape[0]
    input_ids = last_token_ids.new_empty(num_rows)
    positions = last_token_ids.new_empty(num_rows, dtype=torch.int64)
    return input_ids, positions, torch.empty_like(positions), torch.empty_like(last_token_ids)


selection.define(
    "draft_inputs(Tensor last_token_ids, Tensor draft_token_ids, Tensor cu_num_draft_tokens,"
    " Tensor num_tokens, Tensor block_table, int block_size, int max_model_len)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
selection.implement(
    "draft_inputs", "cpu", Implementation("numba", "ascend_spec_ops.draft_inputs.cpu:draft_inputs")
)
for _device in ("cuda", "npu"):
    selection.implement(
        "draft_inputs",
        _device,
        Implementation("triton", "ascend_spec_ops.draft_inputs.launch:draft_inputs"),
    )
