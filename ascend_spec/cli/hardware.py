"""What was verified on which hardware. The README's table says the same; a test compares them."""

VERIFIED = [
    (
        "CPU, x86-64",
        "everything: operators, engine, models, command line; the vLLM plugin as far as docs/vllm.md says",
    ),
    (
        "CUDA sm_80, sm_90; AMD gfx942",
        "every Triton kernel compiles; no stack use on sm_90; shared memory within limits; the same source "
        "runs in Triton's interpreter. Never run on a GPU.",
    ),
    (
        "Ascend 910B3",
        "every Triton kernel lowers through triton-ascend 3.2.0 and bishengir-compile (ascendnpu-ir 1.2.0) up "
        "to the last stage before machine code: on-chip memory under 90 %, no scalar loops, no missing "
        "templates; the lowered code runs on x86 and equals the references. Never run on an NPU.",
    ),
    (
        "torch_npu calls",
        "names, types and shapes checked against the schemas and Meta kernels of torch_npu 2.14.0. Never run "
        "on an NPU.",
    ),
]
