"""What the plugin changes in vLLM, when it stays out, and what it refuses."""

from __future__ import annotations

import pytest
import vllm_cpu_cases as cases

WRAP = "vllm.v1.worker.worker_base.WorkerWrapperBase.init_device"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="session")
def engine(models):
    return {"model": models["target"], "speculative_config": NGRAM}


@pytest.fixture(scope="session")
def fresh(start):
    """A process of its own: what other tests did to vLLM is not there."""
    return start()


def check_registering(answer):
    assert answer == {"first": [WRAP], "second": [], "undone": [], "imported": [], "device": False}


def check_attaching(answer):
    assert answer["attached"]
    assert answer["same class"]
    assert answer["changed"] == []
    assert answer["changed later"] == []


def test_only_the_wrap_differs(fresh, engine):
    check_registering(fresh("vllm_cpu_attach:registering"))
    batches = [cases.alternating(cases.greedy(), cases.sampled(top_k=5))]
    check_attaching(fresh("vllm_cpu_attach:attaching", engine={**engine, **cases.PLUGIN}, batches=batches))
    bare = fresh("vllm_cpu_attach:attaching", engine=engine, batches=[cases.greedy()])
    assert not bare["attached"]
    assert bare["changed"] == []
    assert bare["log"] == []
    for mutant in ("patches_a_class", "patches_a_module"):
        answer = fresh(
            "vllm_cpu_attach:attaching", mutant=mutant, engine={**engine, **cases.PLUGIN}, batches=batches
        )
        with pytest.raises(AssertionError):
            check_attaching(answer)


def check_it_stayed_out(answer):
    assert not answer["wrapped"]
    assert answer["log"] == []
    assert answer["metrics"][0]["num_draft_tokens"] > 0, "vLLM's own speculation runs"


def test_switched_off(switched_off, engine):
    arguments = {"engine": {**engine, **cases.PLUGIN}, "batches": [cases.greedy()]}
    check_it_stayed_out(switched_off("vllm_cpu_attach:stays_out", **arguments))


def test_not_among_the_plugins(start, engine):
    arguments = {"engine": {**engine, **cases.PLUGIN}, "batches": [cases.greedy()]}
    check_it_stayed_out(start(VLLM_PLUGINS="another_one")("vllm_cpu_attach:stays_out", **arguments))


def test_a_vllm_without_the_seam_keeps_its_own_speculation(start, engine):
    answer = start()(
        "vllm_cpu_attach:without_seam", engine={**engine, **cases.PLUGIN}, batches=[cases.greedy()]
    )
    assert not answer["wrapped"]
    (line,) = answer["log"]
    assert "is not attached" in line
    assert "WorkerWrapperBase.init_device" in line
    assert answer["metrics"][0]["num_draft_tokens"] > 0


def test_a_runner_without_a_seam_is_named_at_start(vllm, engine):
    report = vllm(
        "vllm_cpu_engine:generate",
        mutant="seam_is_gone",
        fails=True,
        batches=[],
        engine={**engine, **cases.PLUGIN},
    )
    assert report["type"] == "SeamError"
    assert "CPUModelRunner has no rejection_sampler.apply_logits_processors" in report["error"]


def test_an_engine_does_not_start_on_wrong_options(vllm, engine):
    wrong = {"additional_config": {"ascend_spec": {"rejection_sample_metod": "standard"}}}
    report = vllm("vllm_cpu_engine:generate", fails=True, engine={**engine, **wrong}, batches=[])
    assert report["type"] == "ConfigError"
    assert "Did you mean 'ascend_spec.rejection_sample_method'?" in report["error"]


def test_a_misspelt_key_is_named(vllm, engine):
    """It is not ours, so the engine starts; but perhaps it was meant to be."""
    for key, said in (("ascend-spec", ["has the key 'ascend-spec', not 'ascend_spec'"]), ("other", [])):
        answer = vllm(
            "vllm_cpu_engine:generate", engine={**engine, "additional_config": {key: {}}}, batches=[]
        )
        assert len(answer["log"]) == len(said)
        assert all(part in line for part, line in zip(said, answer["log"], strict=True))


#: our options -> what the refusal must say
REFUSED = [
    ({"onerror": "raise"}, "Did you mean 'ascend_spec.on_error'?"),
    ({"num_speculative_tokens": 4}, "is a field of the speculative config itself. Move it there"),
    (
        {"ascend_spec": {"on_error": "raise"}},
        "inside another 'ascend_spec'. Put its options into the outer one",
    ),
    ({"on_error": "stop"}, "'ascend_spec.on_error' was given as 'stop'"),
    (True, "'ascend_spec' was given as True"),
    ("standard", "'ascend_spec' was given as 'standard'"),
    ({"rejection_sample_method": "standart"}, "Did you mean 'standard'?"),
    ({"rejection_sample_method": "synthetic"}, "neither"),
    ({"posterior_alpha": 2.0}, "'ascend_spec.posterior_alpha'"),
    ({"disable_by_batch_size": 8}, "'ascend_spec.disable_by_batch_size'"),
    ({"heterogeneous_vocab_method": "slem"}, "'ascend_spec.heterogeneous_vocab_method'"),
]


def test_refusals(vllm, models):
    given = [(NGRAM, options) for options, _ in REFUSED]
    for verdict, (options, said) in zip(
        vllm("vllm_cpu_attach:judge", model=models["target"], cases=given), REFUSED, strict=True
    ):
        assert said in verdict, (options, verdict)
        assert verdict.startswith("Speculative config:")


def test_what_is_asked_for_in_vllms_own_fields(vllm, models):
    synthetic = {**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5] * 4}
    given = [(None, {}), (None, {"on_error": "raise"}), (NGRAM, {}), (synthetic, {})]
    plain, nothing, ours, theirs = vllm("vllm_cpu_attach:judge", model=models["target"], cases=given)
    assert plain == "none standard"
    assert "without a speculative config" in nothing
    assert ours == "ngram standard"
    assert theirs == "ngram synthetic"


def test_a_failing_drafter(vllm, engine):
    """It costs the drafts; with on_error "raise" the engine says so."""
    arguments = {"mutant": "ngram_fails", "batches": [cases.greedy()]}
    answer = vllm("vllm_cpu_engine:generate", engine={**engine, **cases.PLUGIN}, **arguments)
    (healthy,) = vllm("vllm_cpu_engine:generate", engine=engine, batches=[cases.greedy()])["outputs"]
    assert answer["outputs"][0] == healthy
    assert answer["metrics"][0]["num_draft_tokens"] == 0
    assert sum("the drafter failed" in line for line in answer["log"]) == 1
    strict = {"additional_config": {"ascend_spec": {"on_error": "raise"}}}
    report = vllm("vllm_cpu_engine:generate", fails=True, engine={**engine, **strict}, **arguments)
    assert "no lookup today" in report["error"]
