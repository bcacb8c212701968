"""Chain verification: keep the longest prefix of the drafts that leaves the target's distribution unchanged.

Rejection sampling of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318): draft ``d`` is
accepted with probability ``min(1, p(d) / q(d))``; at the first rejection one token is drawn from
``norm(max(p - q, 0))``, and after the last draft from ``p``. ``q`` is the distribution the draft was really
drawn from; a deterministic draft is one-hot. Greedy requests accept a draft iff it is the argmax.

**The draw** is part of the definition, so that every implementation gives the same tokens. The vocabulary is
cut into blocks of 4096. Block ``b`` wins by the largest ``log(mass of b) + Gumbel`` (stream ``BLOCK``, lane
``b``), and within it the token ``i`` with the largest ``log-weight + Gumbel`` (stream ``LANE``, lane ``i``
in the block). That is an exact draw with ``V / 4096 + 4096`` random numbers instead of ``V``, without a scan.
The accept test is ``E > log q(d) - log p(d)`` with a standard exponential ``E`` (stream ``ACCEPT``, lane 0),
which is ``u < p / q`` where ``u`` is never 0 or 1.
"""

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation

#: Tokens in one logical block of the vocabulary; part of the definition of the draw.
VOCAB_BLOCK = 4096


def verify(
    logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    draft_logits: torch.Tensor | None = None,
    draft_temperature: torch.Tensor | None = None,
) -> torch.Tensor:
    """Judge the drafts of every request and draw its last token.

    Request ``b`` has ``n = cu[b] - cu[b-1]`` drafts and ``n + 1`` logits rows from row ``cu[b-1] + b`` on;
    row ``j`` judges draft ``j``, and the last one gives the bonus token.

    Args:
        logits: ``[N + B, V]`` float32, float16 or bfloat16; the last dimension is contiguous. Masked tokens
            are ``-inf``. ``p = softmax(logits / temperature)``.
        draft_token_ids: ``[N]`` int32. A negative id is an empty slot: the request's drafts end there,
            whatever follows. An id of ``V`` or more is rejected.
        cu_num_draft_tokens: ``[B]`` int32, inclusive cumulative counts; a request may have none.
        temperature: ``[B]`` float32; 0 is greedy (ties: the lowest id). Logits over temperature are rounded
            to float32, which below 1e-4 moves near-ties, and must not overflow it.
        seeds: ``[B]`` int64.
        positions: ``[B]`` int64, absolute position of the token that row 0 of the request draws.
        max_spec_len: K, the most drafts a request may have.
        draft_logits: ``[N, V]``, the logits each draft was drawn from; None: all drafts are deterministic.
        draft_temperature: ``[B]`` float32, with ``draft_logits``: ``q = softmax(draft_logits /
            draft_temperature)``; 0 marks a request whose drafts are deterministic. A row of draft logits
            that is not finite ends the drafts of its request.

    Returns:
        ``[B, K + 2]`` int32: how many tokens are emitted (1 to n + 1), the tokens, then -1. A count of 0 says
        that a row which decides (up to the first rejection) has a NaN, a ``+inf`` or nothing but ``-inf``:
        that request has no tokens, its neighbours are untouched.

    Raises:
        RuntimeError: shapes or dtypes are not as above.
    """
    return torch.ops.ascend_spec.verify(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature,
    )  # fmt: skip


def _rows_are_contiguous(x: torch.Tensor) -> bool:
    return x.stride(1) == 1 or x.shape[1] == 1 or x.shape[0] == 0


def check_arguments(
    logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
    draft_logits=None, draft_temperature=None,
) -> None:  # fmt: skip
    """Shapes and dtypes; reads no values, so that it is free of synchronisation."""
    num_requests, num_drafts = cu_num_draft_tokens.shape[0], draft_token_ids.shape[0]
    check = torch._check
    check(
        logits.dim() == 2 and logits.is_floating_point(), lambda: f"logits must be [N + B, V]: {logits.shape}"
    )
    check(
        _rows_are_contiguous(logits),
        lambda: f"logits rows must be contiguous, not of strides {logits.stride()}",
    )
    check(
        logits.shape[0] == num_requests + num_drafts,
        lambda: (
            f"{logits.shape[0]} logits rows for {num_drafts} drafts and {num_requests} requests: "
            f"there must be {num_requests + num_drafts}"
        ),
    )
    check(max_spec_len >= 0, lambda: f"max_spec_len must be 0 or more, not {max_spec_len}")
    check(
        draft_token_ids.dtype == torch.int32 and draft_token_ids.dim() == 1,
        lambda: (
            f"draft_token_ids must be [N] int32, not {list(draft_token_ids.shape)} {draft_token_ids.dtype}"
        ),
    )
    check(
        cu_num_draft_tokens.dtype == torch.int32 and cu_num_draft_tokens.dim() == 1,
        lambda: f"cu_num_draft_tokens must be [B] int32, not {list(cu_num_draft_tokens.shape)}",
    )
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("seeds", seeds, torch.int64),
        ("positions", positions, torch.int64),
    ):
        check(
            tensor.shape == (num_requests,) and tensor.dtype == dtype,
            lambda name=name, tensor=tensor, dtype=dtype: (
                f"{name} must be [{num_requests}] {dtype}, not {list(tensor.shape)} {tensor.dtype}"
            ),
        )
    check(
        (draft_logits is None) == (draft_temperature is None),
        lambda: "draft_logits and draft_temperature go together",
    )
    if draft_logits is not None:
        check(
            draft_logits.shape == (num_drafts, logits.shape[1]) and _rows_are_contiguous(draft_logits),
            lambda: (
                f"draft_logits must be [{num_drafts}, {logits.shape[1]}] with contiguous rows, "
                f"not {list(draft_logits.shape)}"
            ),
        )
        check(
            draft_temperature.shape == (num_requests,) and draft_temperature.dtype == torch.float32,
            lambda: f"draft_temperature must be [{num_requests}] float32",
        )


def _fake(logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
          draft_logits=None, draft_temperature=None):  # fmt: skip
    check_arguments(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature,
    )  # fmt: skip
    return logits.new_empty((cu_num_draft_tokens.shape[0], max_spec_len + 2), dtype=torch.int32)


selection.define(
    "verify(Tensor logits, Tensor draft_token_ids, Tensor cu_num_draft_tokens, Tensor temperature, "
    "Tensor seeds, Tensor positions, int max_spec_len, Tensor? draft_logits=None, "
    "Tensor? draft_temperature=None) -> Tensor",
    _fake,
)
selection.implement("verify", "cpu", Implementation("numba", "ascend_spec_ops.verify.cpu:verify"))
for _device in ("cuda", "npu"):
    selection.implement("verify", _device, Implementation("triton", "ascend_spec_ops.verify.launch:verify"))
