"""Find out at start whether a model can run on paged K/V and packed requests.

Two looks, neither of which knows a list of architectures:

1. One request of a few tokens with an attention function that only records: does every decoder layer call it
   exactly once, with a call that can be honoured, and with the mask that the call describes?
2. Two requests packed into one forward on real paged K/V: does each get the logits that the model, as
   transformers runs it, gives it alone? Whatever mixes tokens outside attention (state-space layers,
   convolutions, token shift, positions counted by row) fails here.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import torch

from ascend_spec.models.attention import PROBE, PROBE_WITHOUT_MASK, RecordedCall, UnsupportedModelError
from ascend_spec.types import AttentionMetadata

LENGTHS = (5, 4)
BLOCK_SIZE = 16
#: Allowed relative error of a logits row, taken at the median row: a mixture of experts may send a token
#: elsewhere for a rounding error, but tokens mixed across requests change every row of the second one.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.1}


def requests(vocab_size: int, device: torch.device) -> list[torch.Tensor]:
    """Token ids ``[n]`` int64 of each probe request."""
    ids = torch.arange(1, 1 + sum(LENGTHS), device=device) * 7 % vocab_size
    return list(ids.split(LENGTHS))


@torch.no_grad()
def alone(hf_model: Any, vocab_size: int) -> list[torch.Tensor]:
    """Logits ``[n, V]`` that transformers computes for each probe request by itself; none on meta tensors."""
    if hf_model.device.type == "meta":
        return []
    return [
        hf_model(input_ids=ids[None], use_cache=False, return_dict=True).logits[0].double()
        for ids in requests(vocab_size, hf_model.device)
    ]


def record_calls(hf_model: Any, num_layers: int) -> list[RecordedCall]:
    """The attention call of each layer, in the order of layers.

    Raises:
        UnsupportedModelError: a layer does not call the registered function, or not once, or asks for what
            is not implemented.
    """
    device = hf_model.device
    hf_model.set_attn_implementation(PROBE_WITHOUT_MASK if device.type == "meta" else PROBE)
    recorded: list[RecordedCall] = []
    hf_model(
        input_ids=torch.arange(1, 1 + LENGTHS[0], device=device)[None],
        position_ids=torch.arange(LENGTHS[0], device=device)[None],
        use_cache=False,
        return_dict=True,
        paged_kv=recorded,
    )
    calls = Counter(call.layer_idx for call in recorded)
    silent = [layer for layer in range(num_layers) if not calls[layer]]
    if silent:
        raise UnsupportedModelError(
            f"{len(silent)} of its {num_layers} decoder layers ({_some(silent)}) do not call the registered "
            "attention function: they are state-space, convolution or linear-attention layers, or the "
            "architecture has attention code of its own"
        )
    repeated = [layer for layer, times in calls.items() if times > 1 or layer >= num_layers]
    if repeated:
        raise UnsupportedModelError(f"layers {_some(repeated)} attend more than once in a forward")
    return sorted(recorded, key=lambda call: call.layer_idx)


def packed_metadata(lengths: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, AttentionMetadata]:
    """Positions ``[T]`` and metadata of fresh requests of at most BLOCK_SIZE tokens, one block each."""
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])
    slots = torch.cat([torch.arange(n, device=device) + b * BLOCK_SIZE for b, n in enumerate(lengths)])
    return positions, AttentionMetadata(
        block_table=torch.arange(len(lengths), dtype=torch.int32, device=device)[:, None],
        slot_mapping=slots,
        query_start_loc=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        query_lens_cpu=lengths,
        seq_lens_cpu=lengths,
        max_query_len=max(lengths),
    )


def compare_packed(model: Any, expected: list[torch.Tensor]) -> None:
    """Run the probe requests packed through ``model`` (a CausalLM) and compare with ``expected``.

    Raises:
        UnsupportedModelError: a request's logits depend on being packed or paged.
    """
    device = model.info.device
    positions, metadata = packed_metadata(LENGTHS, device)
    ids = torch.cat(requests(model.info.vocab_size, device))
    caches = model.allocate_kv_cache(len(LENGTHS), BLOCK_SIZE)
    every_row = torch.arange(ids.shape[0], device=device)
    logits = model.forward(ids, positions, caches, metadata, every_row).double().split(LENGTHS)
    for request, (packed, single) in enumerate(zip(logits, expected, strict=bool(expected))):
        error = ((packed - single).norm(dim=-1) / single.norm(dim=-1)).median().item()
        if not error <= TOLERANCE[model.info.dtype]:
            raise UnsupportedModelError(
                f"request {request} of a packed probe batch got other logits than alone (relative error "
                f"{error:.1e}): something besides attention mixes tokens, or positions are not honoured"
            )


def _some(layers: list[int]) -> str:
    return ", ".join(map(str, layers[:6])) + (", ..." if len(layers) > 6 else "")
