"""What the plugin refuses of a configuration that is right by itself: told without vLLM, so that ``check-config`` says
it too. What takes vLLM's own configuration to know is in :mod:`ascend_spec.vllm.translate`."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config import BUILT_IN, AscendSpecConfig, Finding, SpeculatorConfig
from ascend_spec.config.checks import method_name
from ascend_spec.config.errors import shortened

#: options of ours that the adapters carry out, or that the configuration layer has judged
HONOURED = (
    "method", "rejection_sample_method", "on_error", "posterior_threshold", "posterior_alpha", "mqa_attention",
    "match", "suffix_memory_path",
)  # fmt: skip
#: methods whose drafters of ours may stand in for another one of vLLM's: it takes "suffix" only where the package
#: arctic_inference is installed
CARRIERS = {"suffix": "ngram"}


def drafter_is_ours(speculator: SpeculatorConfig, runner: str) -> bool:
    """Whether a drafter of this project proposes in vLLM's "v1" or "v2" runner, and not vLLM's own."""
    if runner == "v1":
        return speculator.config.method in ("ngram", "suffix")
    # it reads the token history alone, and reads it on the device
    built = speculator.speculator_class is not None
    return built and speculator.model == "none" and not speculator.needs_host_tokens


def refused(
    speculator: SpeculatorConfig,
    runner: str,
    carrier: str | None,
    *,
    async_scheduling: bool = False,
    device_type: str = "cpu",
) -> Iterator[Finding]:
    """What would quietly become something else, or part the ranks.

    Args:
        runner: "v1" or "v2".
        carrier: the method that vLLM reads in its own fields; None: none.
    """
    yield from _refused_method(speculator, carrier)
    yield from _refused_options(speculator)
    yield from _refused_match(speculator, runner)
    yield from _refused_noise(speculator, runner)
    yield from _refused_adaptive(speculator, runner)
    yield from _refused_disable(speculator, runner, async_scheduling, device_type)


def _refused_method(speculator: SpeculatorConfig, carrier: str | None) -> Iterator[Finding]:
    """vLLM runs what its own fields say."""
    name = method_name(speculator)
    if carrier in (name, CARRIERS.get(name)):
        return
    if speculator.config.ascend_spec.method is None:
        yield Finding(
            "method",
            f"Method {name!r} was registered with ascend-spec, which vLLM does not ask: it is not built for vLLM yet. "
            "Choose another method.",
        )
        return
    if name in CARRIERS:
        todo = f'Remove it, or give "{CARRIERS[name]}" in --speculative-config, which can carry it'
    else:
        todo = (
            "Remove it" if name not in BUILT_IN else "Remove it, or give the method in --speculative-config"
        )
    yield Finding(
        "ascend_spec.method",
        f"'ascend_spec.method' was given as {name!r}, but the method of --speculative-config is {carrier!r}, and that "
        f"is what vLLM would run. {todo}.",
    )


def _refused_options(speculator: SpeculatorConfig) -> Iterator[Finding]:
    given = speculator.config.ascend_spec
    for name, option in AscendSpecConfig.model_fields.items():
        value = getattr(given, name)
        if name not in HONOURED and value != option.get_default():
            yield Finding(
                f"ascend_spec.{name}",
                f"'ascend_spec.{name}' was given as {shortened(value)}, which is not built for vLLM yet. Remove "
                "it.",
            )


def _refused_match(speculator: SpeculatorConfig, runner: str) -> Iterator[Finding]:
    """Of a method that has matches, drafted by vLLM: its V1 runner's takes the earliest."""
    match = speculator.config.ascend_spec.match
    if match != "earliest" and not drafter_is_ours(speculator, runner):
        yield Finding(
            "ascend_spec.match",
            f"'ascend_spec.match' was given as {match!r}, but with the method {speculator.config.method!r} vLLM's V1 "
            "runner drafts itself, and takes the earliest match. Use the method 'ngram'.",
        )


def _refused_noise(speculator: SpeculatorConfig, runner: str) -> Iterator[Finding]:
    """Rules that want more of a drafter's random numbers than that they are random: ``coupled`` wants the target's, and
    ``block`` new ones each round, since it has looked at those of drafts that it then rejects."""
    why = {
        "coupled": "draw with random numbers of their own",
        "block": "draw a position's draft with the same random number in every round, which biases this rule",
    }.get(speculator.config.rule)
    if runner == "v2" and why is not None and speculator.draft_distribution == "sampled":
        yield Finding(
            "draft_sample_method",
            f'\'draft_sample_method\' was given as "probabilistic" with the rule "{speculator.config.rule}", but the '
            f'drafters of vLLM\'s V2 runner {why}. Use "greedy", or change the rule.',
        )


def _refused_adaptive(speculator: SpeculatorConfig, runner: str) -> Iterator[Finding]:
    """vLLM's V2 runner leaves out drafts that its own drafters are not confident of: a step's counts are then known on
    the device alone, which the sampler takes."""
    if not speculator.config.enable_adaptive_verification:
        return
    given = "'enable_adaptive_verification' was given as true"
    if drafter_is_ours(speculator, runner):
        yield Finding(
            "enable_adaptive_verification",
            f"{given}, but method {method_name(speculator)!r} tells no confidence in its drafts: all of them would be "
            "verified. Remove it.",
        )
    if speculator.config.ascend_spec.mqa_attention:
        yield Finding(
            "enable_adaptive_verification",
            f"{given} together with 'ascend_spec.mqa_attention', which was not tried on steps whose rows are counted "
            "on the device. Remove one of them.",
        )


def _refused_disable(
    speculator: SpeculatorConfig, runner: str, async_scheduling: bool, device_type: str
) -> Iterator[Finding]:
    """Where speculation cannot be left out once a drafter has failed to load."""
    if speculator.config.ascend_spec.on_error != "disable":
        return
    ranks = speculator.target.tensor_parallel_size if speculator.target is not None else 1
    parted = "a drafter that fails on one rank alone would part the ranks"
    if drafter_is_ours(speculator, runner):
        drafter, reasons = "", {parted: runner == "v2" and ranks > 1}
    else:
        drafter = " with a drafter of vLLM's own"
        reasons = {
            "the V2 runner verifies as many drafts of every request in every step": runner == "v2",
            "under asynchronous scheduling drafts are expected in every step (--no-async-scheduling)": async_scheduling,
            parted: ranks > 1,
            "on Ascend it was not tried": device_type == "npu",
        }
    if found := [reason for reason, holds in reasons.items() if holds]:
        yield Finding(
            "ascend_spec.on_error",
            f"'ascend_spec.on_error' was given as 'disable', which this start cannot keep{drafter}: "
            f'{"; ".join(found)}. Use "continue" or "raise".',
        )
