"""Buckets, persistent buffers, and the recorder's power to refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from ascend_spec.config import Bucket, all_buckets, choose_bucket
from ascend_spec.runtime import (
    HostSyncError,
    Recorder,
    device_facts,
    new_buffers,
    refill,
)
from ascend_spec_ops import random_bits


@dataclass(frozen=True)
class Inner:
    y: torch.Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    inner: Inner
    mask: torch.Tensor | None = None


def inputs(*values: float, lengths: tuple[int, ...] = (1,)) -> Inputs:
    return Inputs(torch.tensor(values), Inner(torch.tensor(values) * 10, lengths))


# ------------------------------------------------------------------------------------------------- buckets
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 8, 14])
@pytest.mark.parametrize("max_drafts", [0, 1, 3, 5, 8])
def test_every_decode_step_fits_a_listed_bucket(max_num_seqs, max_drafts):
    listed = all_buckets(max_num_seqs, max_drafts)
    assert len(set(listed)) == len(listed)
    for num_requests in range(1, max_num_seqs + 1):
        for num_drafts in range(max_drafts + 1):
            bucket = choose_bucket(num_requests, num_drafts, max_num_seqs, max_drafts)
            assert bucket in listed
            assert num_requests <= bucket.num_requests <= max_num_seqs
            assert num_drafts <= bucket.num_drafts <= max_drafts


def test_a_single_request_is_never_padded():
    assert [choose_bucket(1, k, 8, 5).num_rows for k in range(6)] == [1, 2, 3, 4, 5, 6]


def test_plain_decoding_gets_no_draft_rows():
    assert choose_bucket(5, 0, 8, 5) == Bucket(8, 0)


# ------------------------------------------------------------------------------------------------- buffers
def test_refill_keeps_memory_and_takes_host_fields_from_the_new_plan():
    first = inputs(1.0, 2.0)
    buffers = new_buffers(first)
    assert buffers.x.data_ptr() != first.x.data_ptr()
    filled = refill(buffers, inputs(3.0, 4.0, lengths=(7,)))
    assert filled.x is buffers.x
    assert filled.inner.y is buffers.inner.y
    assert buffers.inner.y.tolist() == [30.0, 40.0]
    assert filled.inner.lengths == (7,)


def test_refill_refuses_other_shapes_and_tensors_that_come_or_go():
    buffers = new_buffers(inputs(1.0, 2.0))
    with pytest.raises(ValueError, match=r"\[3\] torch.float32 where its bucket's buffer is \(\[2\]"):
        refill(buffers, inputs(1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="buffer is None"):
        refill(buffers, replace(inputs(1.0, 2.0), mask=torch.ones(1)))
    with_mask = new_buffers(replace(inputs(1.0, 2.0), mask=torch.ones(1)))
    with pytest.raises(ValueError, match="lacks the tensor 'mask'"):
        refill(with_mask, inputs(1.0, 2.0))


# ------------------------------------------------------------------------------------------------ recorder
def test_replay_works_on_the_captured_buffers_and_output():
    recorder = Recorder()
    buffers = new_buffers(inputs(1.0, 2.0))
    replay = recorder.capture(lambda i: i.x + i.inner.y, buffers)
    first = replay(refill(buffers, inputs(1.0, 2.0)))
    assert first.tolist() == [11.0, 22.0]
    second = replay(refill(buffers, inputs(3.0, 4.0)))
    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [33.0, 44.0]
    assert (recorder.num_captures, recorder.num_replays) == (1, 2)


def test_replay_refuses_other_memory():
    buffers = new_buffers(inputs(1.0, 2.0))
    replay = Recorder().capture(lambda i: i.x * 2, buffers)
    with pytest.raises(HostSyncError, match="other buffers"):
        replay(inputs(1.0, 2.0))


def _branch(i: Inputs) -> torch.Tensor:
    return i.x if i.x[0] > 0 else i.x + 1


SYNCS = {
    "item": lambda i: i.x * i.x[0].item(),
    "tolist": lambda i: torch.ones(2) * len(i.x.tolist()),
    "cpu": lambda i: i.x.cpu(),
    "to_cpu": lambda i: i.x.to("cpu"),
    "numpy": lambda i: torch.from_numpy(i.x.numpy()),
    "branch": _branch,
    "int": lambda i: i.x * int(i.x[0]),
    "float": lambda i: i.x * float(i.x[0]),
    "index": lambda i: i.x[: i.x.long()[0]],
    "nonzero": lambda i: i.x.nonzero(),
    "torch_nonzero": lambda i: torch.nonzero(i.x),
    "where": lambda i: torch.where(i.x > 0)[0],
    "mask": lambda i: i.x[i.x > 0],
    "mask_assignment": lambda i: i.x.clone().index_put_((i.x > 0,), torch.tensor(0.0)),
    "masked_select": lambda i: torch.masked_select(i.x, i.x > 0),
    "unique": lambda i: torch.unique(i.x),
    "equal": lambda i: i.x * torch.equal(i.x, i.x),
    "allclose": lambda i: i.x * torch.allclose(i.x, i.x),
    "repeat_interleave": lambda i: torch.repeat_interleave(i.x, i.x.long()),
    "max_of_list": lambda i: i.x * max(list(i.x)),
}


@pytest.mark.parametrize("name", SYNCS)
def test_recorder_refuses_host_synchronisation_and_data_dependent_shapes(name):
    buffers = new_buffers(inputs(1.0, 2.0))
    with pytest.raises(HostSyncError):
        Recorder().capture(SYNCS[name], buffers)
    assert buffers.x.tolist() == [1.0, 2.0]  # and Tensor is as it was


def test_a_sync_that_appears_only_at_replay_is_refused_too():
    calls = []

    def sometimes(i: Inputs) -> torch.Tensor:
        calls.append(1)
        return i.x * i.x[0].item() if len(calls) > 2 else i.x * 2

    buffers = new_buffers(inputs(1.0, 2.0))
    replay = Recorder().capture(sometimes, buffers)
    with pytest.raises(HostSyncError, match="item"):
        replay(buffers)


def test_own_operators_are_opaque_but_code_after_them_is_watched():
    buffers = new_buffers(Inputs(torch.arange(3), Inner(torch.arange(3), ())))
    replay = Recorder().capture(lambda i: random_bits(i.x, i.inner.y, 0, 4), buffers)
    assert replay(buffers).tolist() == random_bits(buffers.x, buffers.inner.y, 0, 4).tolist()
    with pytest.raises(HostSyncError, match="tolist"):
        Recorder().capture(lambda i: random_bits(i.x, i.inner.y, 0, 4).tolist(), buffers)


# ------------------------------------------------------------------------------------------------- devices
def test_device_facts():
    assert device_facts("npu:0").block_size == 128
    assert device_facts(torch.device("cpu")).host_readable
    assert device_facts("cuda:1").static_shapes
    assert not device_facts("cpu").static_shapes
    with pytest.raises(ValueError, match="'mps' was given; use one of cpu, cuda, npu"):
        device_facts("mps")
