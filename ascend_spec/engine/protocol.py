"""Who runs in a step, target or draft, and in which order: decided once a step, the same on every rank.

The driver decides from the scheduled batch and broadcasts the decision, a :class:`SpecDecodeControl`; every
rank then makes the same calls in the same order (:func:`run_step`), so that the collectives inside them meet:

| batch | calls |
|---|---|
| empty | none; the decision is broadcast all the same, or the other ranks would wait for it |
| drafts to verify | draft proposes, target verifies |
| drafts to verify, and prompts | draft proposes, target computes both, draft follows over the prompts |
| no drafts: prompts only, every K zero | target, draft follows |
| no speculation any more | target |

To *follow* is to compute the draft's own K/V of what the target has computed and to propose nothing.

The embedded engine is the only rank. It makes the proposals of a step at the end of the step before it, from
what the device knows, while the host has yet to see the tokens: in decode the sequence draft, target, draft,
target is the same, with the boundary between steps half a period later (``propose_ahead``). A request that is
both to be followed and to be proposed for gets one call there: a proposal brings its K/V up to date anyway.

The fields and the order are those of vLLM's earlier ``SpecDecodeWorker``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TypeVar

import torch

from ascend_spec.types import ScheduledRequest

Output = TypeVar("Output")


@dataclass(frozen=True)
class SpecDecodeControl:
    """What every rank must know of a step before it calls anything. As it stands: an empty batch."""

    num_requests: int = 0
    """Requests in the batch; 0: nothing is called."""
    num_lookahead_slots: int = 0
    """Draft steps of a proposal; 0: no proposals."""
    no_spec: bool = False
    """No drafts are verified: the batch is prompts only, is over its limit, or has only requests with K = 0."""
    disable_all_speculation: bool = False
    """The requests of this batch will never be speculated on again: the draft need not follow them."""
    run_spec_proposer_for_prefill: bool = False
    """The batch has unfinished prompts."""

    def __post_init__(self) -> None:
        speculates = self.num_requests > 0 and not self.no_spec
        sane = (
            min(self.num_requests, self.num_lookahead_slots) >= 0
            and (self.num_requests > 0 or not any(astuple(self)))
            and (not speculates or self.num_lookahead_slots > 0)
            and (not self.disable_all_speculation or (self.no_spec and self.num_lookahead_slots == 0))
        )
        if not sane:
            raise ValueError(f"{self} contradicts itself: ranks are out of step, or a message is damaged")

    @property
    def is_empty(self) -> bool:
        return self.num_requests == 0

    @property
    def draft_follows(self) -> bool:
        """Whether the draft runs after the target, to keep its K/V in step."""
        return not self.disable_all_speculation if self.no_spec else self.run_spec_proposer_for_prefill

    def to_tensor(self) -> torch.Tensor:
        """``[5]`` int64 on the host, the fields in order; all zeros for an empty batch."""
        return torch.tensor([int(value) for value in astuple(self)], dtype=torch.int64)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> SpecDecodeControl:
        """The inverse of :meth:`to_tensor`.

        Raises:
            ValueError: what cannot come from :meth:`to_tensor`.
        """
        if tensor.shape != (len(fields(cls)),) or tensor.dtype != torch.int64:
            raise ValueError(
                f"a control message of {list(tensor.shape)} {tensor.dtype} was given; it must be "
                f"[{len(fields(cls))}] int64"
            )
        num_requests, num_lookahead_slots, *flags = tensor.tolist()
        if not {*flags} <= {0, 1}:
            raise ValueError(f"a control message has the flags {flags}; they must be 0 or 1")
        return cls(num_requests, num_lookahead_slots, *map(bool, flags))


def decide_step(
    scheduled: Sequence[ScheduledRequest],
    *,
    num_running: int,
    num_lookahead_slots: int,
    disable_by_batch_size: int | None = None,
) -> SpecDecodeControl:
    """The decision for one step.

    Args:
        scheduled: the batch.
        num_running: running requests, those included that the batch had no room for.
        num_lookahead_slots: K, the draft steps of a proposal.
        disable_by_batch_size: with this many running requests or more the batch stops speculating, for good;
            None: never.
    """
    if not scheduled:
        return SpecDecodeControl()
    over_limit = disable_by_batch_size is not None and num_running >= disable_by_batch_size
    disable_all = over_limit or all(request.speculation_disabled for request in scheduled)
    num_lookahead_slots = 0 if disable_all else num_lookahead_slots
    return SpecDecodeControl(
        num_requests=len(scheduled),
        num_lookahead_slots=num_lookahead_slots,
        no_spec=num_lookahead_slots == 0 or not any(request.num_drafts for request in scheduled),
        disable_all_speculation=disable_all,
        run_spec_proposer_for_prefill=not all(request.decodes for request in scheduled),
    )


def run_step(
    control: SpecDecodeControl,
    target: Callable[[], Output],
    propose: Callable[[int], None],
    follow: Callable[[], None],
    *,
    propose_ahead: bool = False,
) -> Output | None:
    """Make a rank's calls of one step, in the order of the module's table.

    Args:
        control: the decision, as the driver broadcast it.
        target: forward and verification of the whole batch.
        propose: drafts, in that many draft steps.
        follow: K/V of the draft for what the target has computed.
        propose_ahead: the drafts of this step are there already; those of the next one come last.

    Returns:
        what ``target`` returned; None for an empty batch.
    """
    if control.is_empty:
        return None
    if not propose_ahead and not control.no_spec:
        propose(control.num_lookahead_slots)
    output = target()
    if control.draft_follows:
        follow()
    if propose_ahead and control.num_lookahead_slots:
        propose(control.num_lookahead_slots)
    return output
