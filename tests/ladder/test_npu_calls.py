"""Rung 5: every call of ours into torch_npu fits the operator's schema, and gives the shapes we count on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import pytest
import torch
from ladder import npu_schema
from ladder.extract_npu_schemas import extract
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_npu") is not None, reason="the real torch_npu defines these operators"
)


class CalledOperators(TorchDispatchMode):
    """Names of the npu operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "npu":
            self.names.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module", params=["schema", "meta kernels"])
def npu(request: pytest.FixtureRequest) -> Iterator[None]:
    """The operators on meta tensors: by schema alone, and with Huawei's shape functions."""
    kernels = npu_schema.placeholder_kernels
    if request.param == "meta kernels":
        wheel = npu_schema.find_wheel()
        if wheel is None:
            pytest.skip("no torch_npu wheel in .cache/wheels: `make setup-ascend` downloads it")
        kernels = npu_schema.huawei_kernels(wheel)
    with npu_schema.defined(npu_schema.operators_called(), kernels):
        yield
    assert not any(hasattr(torch.ops.npu, name) for name in npu_schema.operators_called())


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def kv_write() -> None:
    from ascend_spec_ops.kv_write import npu

    caches = meta(16, 128, 8, 64), meta(16, 128, 8, 64)
    args = (meta(5, 8, 64), meta(5, 8, 64), *caches, meta(5, dtype=torch.int64))
    assert npu.supports(*args) is None
    assert npu.kv_write(*args) is None


def attention(query_lens: list[int], seq_lens: list[int], head_dim: int = 128, **options: int) -> None:
    from ascend_spec_ops.mqa_attention import npu

    batch, rows = len(query_lens), sum(query_lens)
    query, cache = meta(rows, 14, head_dim), meta(32, 128, 2, head_dim)
    table, starts, lengths = (
        meta(*shape, dtype=torch.int32) for shape in ((batch, 4), (batch + 1,), (batch,))
    )
    args = (query, cache, meta(*cache.shape), table, starts, lengths, max(query_lens), head_dim**-0.5)
    options |= {"query_lens_cpu": query_lens, "seq_lens_cpu": seq_lens}
    assert npu.supports(*args, **options) is None
    out = npu.mqa_attention(*args, **options)
    assert out.shape == query.shape
    assert out.dtype == query.dtype


#: label -> operator it calls, call
CASES: dict[str, tuple[str, Callable[[], None]]] = {
    "kv_write": ("npu_scatter_pa_kv_cache", kv_write),
    "verification": ("npu_fused_infer_attention_score", lambda: attention([5, 5, 5], [100, 7, 300])),
    "mixed": ("npu_fused_infer_attention_score", lambda: attention([1, 200, 4], [9, 200, 77])),
    "no-rows": ("npu_fused_infer_attention_score", lambda: attention([1, 0, 4], [9, 20, 77])),
    "window": ("npu_fused_infer_attention_score", lambda: attention([4], [400], sliding_window=128)),
    "mla": ("npu_fused_infer_attention_score", lambda: attention([40, 2], [40, 60], head_dim=512)),
}


@pytest.mark.parametrize("label", CASES)
@pytest.mark.usefixtures("npu")
def test_call_fits_the_operator(label: str):
    operator, call = CASES[label]
    with CalledOperators() as called:
        call()
    assert called.names == [operator]


def test_every_operator_called_has_a_case_and_a_schema():
    called = npu_schema.operators_called()
    assert called
    assert called == {operator for operator, _ in CASES.values()} == set(npu_schema.committed()["schemas"])


@pytest.mark.usefixtures("npu")
def test_a_wrong_call_is_refused():
    query, cache = meta(4, 8, 128), meta(16, 128, 1024)
    operator = torch.ops.npu.npu_fused_infer_attention_score
    with pytest.raises(RuntimeError, match="n_heads"):
        operator(query, cache, cache, n_heads=8)
    with pytest.raises(RuntimeError, match="actual_seq_lengths"):
        operator(query, cache, cache, num_heads=8, actual_seq_lengths="4")
    with pytest.raises(RuntimeError, match="value"):
        operator(query, cache)


def test_schemas_are_those_of_the_wheel():
    wheel = npu_schema.find_wheel()
    if wheel is None:
        pytest.skip("no torch_npu wheel in .cache/wheels: `make setup-ascend` downloads it")
    schemas = npu_schema.committed()["schemas"]
    assert extract(wheel, set(schemas)) == schemas
    with pytest.raises(KeyError, match="npu_no_such_operator"):
        extract(wheel, {"npu_no_such_operator"})
