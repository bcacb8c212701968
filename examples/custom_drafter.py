"""A drafter of your own: after each token, what followed it the last time.

    python examples/custom_drafter.py

A class with ``from_plan`` and ``propose`` is all it takes; its dotted path is the ``model`` of the speculative config.
Whatever it proposes, the text stays what the target model alone would have written: a bad drafter costs time only.
"""

from __future__ import annotations

import itertools

import torch

from ascend_spec.config import Plan
from ascend_spec.types import Draft, DraftBatch


class BigramDrafter:
    """Follows each token with the token that came after its latest earlier occurrence in the same request."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    @classmethod
    def from_plan(cls, plan: Plan) -> BigramDrafter:
        """Options of your own are in ``plan.config.speculator_options``."""
        return cls(plan.num_speculative_tokens)

    def propose(self, batch: DraftBatch) -> Draft:
        """``[S, num_speculative_tokens]`` int32, a row for each slot of the batch; -1 where there is no draft."""
        drafts = torch.full((len(batch.num_tokens), self.num_speculative_tokens), -1, dtype=torch.int32)
        wanted = batch.num_speculative_tokens.tolist()
        for slot, num_tokens in enumerate(batch.num_tokens.tolist()):
            if num_tokens == 0 or wanted[slot] == 0:  # nobody's slot, or one that wants no drafts
                continue
            history = batch.token_ids[slot, :num_tokens].tolist()
            following = dict(itertools.pairwise(history))  # of each token, the latest
            token = history[-1]
            for i in range(wanted[slot]):
                if token not in following:
                    break
                token = drafts[slot, i] = following[token]
        return Draft(drafts.to(batch.token_ids.device))


def main() -> None:
    from ascend_spec.engine import LLM
    from ascend_spec.models import demo_model_path
    from ascend_spec.types import SamplingParams

    model = demo_model_path()
    prompt = "Count from one to twenty in words, then do it again: one, two, three,"
    params = SamplingParams(temperature=0.0, max_tokens=48)
    config = {"model": "custom_drafter.BigramDrafter", "method": "custom_class", "num_speculative_tokens": 4}
    with_drafts = LLM(model, speculative_config=config)
    (ours,), (plain,) = with_drafts.generate(prompt, params), LLM(model).generate(prompt, params)
    print(ours.text)
    counted = with_drafts.metrics
    same = ours.token_ids == plain.token_ids
    print(f"{counted.num_accepted_tokens} of {counted.num_draft_tokens} drafts were right; same text: {same}")


if __name__ == "__main__":
    main()
