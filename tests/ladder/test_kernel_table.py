"""The table of kernels is complete, and says what the sources say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from ladder import kernels
from ladder.kernels import ASCEND, ATTENTION_CALLS, GPU, KERNELS, AttentionCall, Kernel
from ladder.samples import SAMPLES

OPS = Path(__file__).parents[2] / "ops"


def is_jit(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def kernels_in_sources() -> dict[tuple[str, str], ast.FunctionDef]:
    found = {}
    for path in sorted(OPS.glob("*/kernel*.py")):
        module = f"ascend_spec_ops.{path.parent.name}.{path.stem}"
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and is_jit(node) and node.name.endswith("_kernel"):
                found[module, node.name] = node
    return found


def test_every_kernel_is_in_the_table_and_no_other():
    assert {(k.module, k.name) for k in KERNELS} == set(kernels_in_sources())


def test_every_kernel_has_a_sample_call():
    assert set(SAMPLES) == {k.name for k in KERNELS}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_arguments_are_those_of_the_source(kernel: Kernel):
    arguments = kernels_in_sources()[kernel.module, kernel.name].args.args
    names = [a.arg for a in arguments]
    constexpr = {a.arg for a in arguments if a.annotation and "constexpr" in ast.unparse(a.annotation)}
    assert list(kernel.signature) == [n for n in names if n not in constexpr]
    for variant in kernel.variants:
        assert constexpr <= set(variant.constexprs) <= set(names), variant.label
        assert set(variant.types) <= set(kernel.signature), variant.label


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_allowances_give_a_reason(kernel: Kernel):
    assert all(a.reason and a.count > 0 for a in kernel.allowed)


def test_rules_have_the_numbers_that_are_launched():
    from ascend_spec_ops.verify.launch import ACCEPT_RULES

    assert {rule: getattr(kernels, rule.upper()) for rule in ACCEPT_RULES} == ACCEPT_RULES


class Recorder:
    """Stands in a launcher's module for a kernel and keeps the keyword arguments of its launch."""

    def __getitem__(self, grid: tuple[int, ...]) -> Recorder:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        self.keywords = kwargs


@pytest.mark.parametrize(("backend", "device_type"), [(GPU, "cuda"), (ASCEND, "npu")])
@pytest.mark.parametrize("call", ATTENTION_CALLS, ids=lambda c: c.label)
def test_attention_is_launched_as_it_is_compiled(
    monkeypatch, call: AttentionCall, backend: str, device_type: str
):
    from ascend_spec_ops.mqa_attention import launch

    tiles, recorder = launch.tiles, Recorder()
    monkeypatch.setattr(launch, "tiles", lambda device, *rest: tiles(device_type, *rest))
    monkeypatch.setattr(launch, "mqa_attention_kernel", recorder)
    dtype = {"*bf16": torch.bfloat16, "*fp32": torch.float32}[call.dtype]
    query = torch.zeros(64, 2 * call.group, call.head_dim, dtype=dtype)
    cache = torch.zeros(2, call.block_size, 2, call.head_dim, dtype=dtype)
    lengths = torch.zeros(3, dtype=torch.int32)
    options = {"mask": torch.ones(64, 64, dtype=torch.bool) if call.mask else None}
    options |= {"sliding_window": 64 * call.window, "soft_cap": 5.0 * call.soft_cap}
    launch.mqa_attention(query, cache, cache, lengths.view(3, 1), lengths, lengths, 64, 1.0, **options)
    variant = call.variant(backend)
    assert recorder.keywords == variant.constexprs | variant.options
