"""Chain verification: how much of the drafts is kept, and the one token that follows.

``p`` is the target's distribution at a row, ``q`` the distribution the draft was really drawn from; a
deterministic draft is one-hot. ``d_0 .. d_{n-1}`` are the drafts of a request, ``E`` a standard exponential
variate, and ``u = exp(-E)``, which is never 0 or 1. Under every rule a request gets its accepted drafts and one
token more, and without drafts an ordinary draw from ``p``.

``standard`` (lossless). Rejection sampling of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv
    2302.01318): ``d`` is accepted iff ``u < p(d) / q(d)``; at the first rejection one token is drawn from
    ``norm(max(p - q, 0))``, and after the last draft from ``p``.
``block`` (lossless). Block verification of Sun et al. (arXiv 2403.10444) judges the drafts together. With
    ``p_0 = 1`` and ``p_i = min(1, p_{i-1} p(d_{i-1}) / q(d_{i-1}))``, and ``R_i = sum max(p_i p - q, 0)`` over row
    i, the first i drafts are kept for the last i with ``u_{i-1} < h_i``, where ``h_n = p_n`` and else
    ``h_i = R_i / (R_i + 1 - p_i)`` (0 / 0: 1). The token after them is drawn from ``norm(max(p_i p - q, 0))``.
    A draft of no probability ends the walk.
``typical`` (lossy; epsilon, delta). Medusa's typical acceptance (Cai et al., arXiv 2401.10774): accepted iff
    ``p(d) > min(epsilon, delta exp(-H))`` with ``H = -sum p log(p + 1e-5)``; at the first rejection the argmax.
    Neither q nor a random number counts before the bonus token.
``synthetic`` (lossy; the K conditional rates). Draft j is accepted iff ``u < rate_j`` and it has probability
    under p and q, however little; a rejection is drawn as under ``standard``. For load tests.
``fly`` (lossy; window W, entropy threshold, top k). Deferred verification (arXiv 2511.22972): a rejection at
    i is overlooked if the draft has probability under p and q, ``i + W < n``, ``-sum p log p`` over the k
    largest p reaches the threshold, and the next W drafts are accepted without deferral of their own.
``coupled`` (lossless). The token of every row is the ordinary draw at its position, and a draft is accepted iff
    it is that token: the text is the one of plain decoding with the same seed, whatever the drafts.

Greedy requests accept a draft iff it is the argmax, and get the argmax; ``synthetic`` accepts by its rates
there too, and ``fly`` overlooks mismatches with p at temperature 1.

**The draw** is part of the definition, so that every implementation gives the same tokens. The vocabulary is
cut into blocks of 4096. Block ``b`` wins by the largest ``log(mass of b) + Gumbel`` (stream ``BLOCK``, lane
``b``), and within it the token ``i`` with the largest ``log-weight + Gumbel`` (stream ``LANE``, lane ``i``
in the block). That is an exact draw with ``V / 4096 + 4096`` random numbers instead of ``V``, without a scan.
The accept test is ``E > log q(d) - log p(d)``, with ``E`` from stream ``ACCEPT``, lane 0, at the draft's
position. Rules that look ahead (``block``, ``fly``) take that of draft j from stream ``ROUND``, lane j, at the
position of row 0.
"""

from collections.abc import Sequence

import torch

from ascend_spec_ops import selection
from ascend_spec_ops.selection import Implementation

#: Tokens in one logical block of the vocabulary; part of the definition of the draw.
VOCAB_BLOCK = 4096

#: Every rule with the names of its options; ``synthetic`` has as many as ``max_spec_len``.
RULES: dict[str, tuple[str, ...]] = {
    "standard": (),
    "block": (),
    "typical": ("epsilon", "delta"),
    "synthetic": ("conditional rates",),
    "fly": ("window", "entropy threshold", "top k"),
    "coupled": (),
}
#: Rules that never look at q.
RULES_WITHOUT_Q = ("typical", "coupled")


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
    rule: str = "standard",
    rule_options: Sequence[float] = (),
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
            that is not finite ends the drafts of its request. Greedy requests, and the rules of
            :data:`RULES_WITHOUT_Q`, never look at it.
        rule: one of :data:`RULES`.
        rule_options: its options in the order of :data:`RULES`; for ``synthetic`` the ``max_spec_len`` rates at
            which a draft is accepted once those before it are.

    Returns:
        ``[B, K + 2]`` int32: how many tokens are emitted (1 to n + 1), the tokens, then -1. A count of 0 says
        that a row which the rule looks at has a NaN, a ``+inf`` or nothing but ``-inf``: that request has no
        tokens, its neighbours are untouched. Rows are looked at up to the first rejection, under ``fly`` also
        those of a window up to the rejection in it, and under ``block`` those that judge a draft, up to a draft
        of no probability, and the one that the last token comes from.

    Raises:
        RuntimeError: shapes or dtypes are not as above; a rule that is not known, or not with these options.
    """
    return torch.ops.ascend_spec.verify(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature, rule, rule_options,
    )  # fmt: skip


def _rows_are_contiguous(x: torch.Tensor) -> bool:
    return x.stride(1) == 1 or x.shape[1] == 1 or x.shape[0] == 0


def _check_rule(rule: str, options: Sequence[float], max_spec_len: int) -> None:
    check = torch._check
    check(rule in RULES, lambda: f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    allowed = max_spec_len if rule == "synthetic" else len(RULES[rule])
    check(
        len(options) == allowed,
        lambda: (
            f"the rule {rule} has {allowed} options ({', '.join(RULES[rule]) or 'none'}), "
            f"not {len(options)}: {list(options)}"
        ),
    )
    if rule == "fly":
        for name, value in (("window", options[0]), ("top k", options[2])):
            check(
                value >= 1 and value == int(value),
                lambda name=name, value=value: (
                    f"the {name} of fly must be a whole number from 1 on, not {value}"
                ),
            )


def check_arguments(
    logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
    draft_logits=None, draft_temperature=None, rule="standard", rule_options=(),
) -> None:  # fmt: skip
    """Shapes, dtypes and the rule; reads no tensor's values, so that it is free of synchronisation."""
    _check_rule(rule, rule_options, max_spec_len)
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
          draft_logits=None, draft_temperature=None, rule="standard", rule_options=()):  # fmt: skip
    check_arguments(
        logits, draft_token_ids, cu_num_draft_tokens, temperature, seeds, positions, max_spec_len,
        draft_logits, draft_temperature, rule, rule_options,
    )  # fmt: skip
    return logits.new_empty((cu_num_draft_tokens.shape[0], max_spec_len + 2), dtype=torch.int32)


selection.define(
    "verify(Tensor logits, Tensor draft_token_ids, Tensor cu_num_draft_tokens, Tensor temperature, "
    "Tensor seeds, Tensor positions, int max_spec_len, Tensor? draft_logits=None, "
    'Tensor? draft_temperature=None, str rule="standard", float[] rule_options=[]) -> Tensor',
    _fake,
)
selection.implement("verify", "cpu", Implementation("numba", "ascend_spec_ops.verify.cpu:verify"))
for _device in ("cuda", "npu"):
    selection.implement("verify", _device, Implementation("triton", "ascend_spec_ops.verify.launch:verify"))
