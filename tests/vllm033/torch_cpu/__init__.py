"""A platform for stock vLLM on a CPU, in torch alone: the published wheel has kernels for GPUs only.

vLLM finds it by its entry point in ``vllm.platform_plugins``. It is vLLM's own CPU platform, worker and runner;
attention and the few compiled operators that these call are written in torch. Triton kernels run in Triton's
interpreter, where the environment asks for it.
"""


def platform() -> str:
    """The entry point: the name of the platform class."""
    return "torch_cpu.platform.TorchCpuPlatform"
