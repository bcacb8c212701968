"""``on_error`` inside vLLM, without vLLM: what is caught when, and where "disable" is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from config_fixtures import Checkpoints, planned

from ascend_spec.config import ConfigError
from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.on_error import OnError, refuse_disable
from ascend_spec.vllm.seams import SeamError, check_seams

CONFIG = {"method": "ngram", "num_speculative_tokens": 3}


def plan(directory, on_error, **target):
    return planned({**CONFIG, "ascend_spec": {"on_error": on_error}}, Checkpoints(directory).target(**target))


def fails():
    raise OSError("no file")


@pytest.mark.parametrize(
    ("on_error", "load_raises", "propose_raises"),
    [("continue", True, False), ("raise", True, True), ("disable", False, False)],
)
def test_what_is_caught(tmp_path, on_error, load_raises, propose_raises):
    for name, raises in (("load", load_raises), ("propose", propose_raises)):
        given = plan(tmp_path, on_error)
        policy = OnError(given, Metrics(given.rule, is_published=False))
        call = getattr(policy, name)
        if raises:
            with pytest.raises(OSError, match="no file"):
                call(fails)
        else:
            assert call(fails) is None
        assert policy.is_off == (on_error == "disable")
        # once speculation is off, nothing is proposed
        assert policy.propose(lambda: 5) == (None if policy.is_off else 5)


def vllm_config(**changed):
    values = {"async_scheduling": False, "tensor_parallel_size": 1, "device_type": "cpu", **changed}
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=values["async_scheduling"]),
        parallel_config=SimpleNamespace(tensor_parallel_size=values["tensor_parallel_size"]),
        device_config=SimpleNamespace(device_type=values["device_type"]),
    )


@pytest.mark.parametrize(
    ("runner", "changed", "said"),
    [
        ("v1", {"async_scheduling": True}, "--no-async-scheduling"),
        ("v1", {"tensor_parallel_size": 2}, "part the ranks"),
        ("v1", {"device_type": "npu"}, "Ascend"),
        ("v2", {}, "V2 runner"),
    ],
)
def test_disable_is_refused_where_it_cannot_be_kept(tmp_path, runner, changed, said):
    with pytest.raises(ConfigError, match=r"'ascend_spec\.on_error' was given as 'disable'") as caught:
        refuse_disable(vllm_config(**changed), plan(tmp_path, "disable", runner=runner))
    assert said in str(caught.value)
    refuse_disable(vllm_config(**changed), plan(tmp_path, "continue", runner=runner))


def test_disable_is_kept_elsewhere(tmp_path):
    refuse_disable(vllm_config(), plan(tmp_path, "disable", runner="v1"))


# ---- seams
class Stock:
    def draw(self, logits, noise):
        """Of some vLLM."""


def test_seams_that_are_there():
    owner = SimpleNamespace(sampler=Stock())
    check_seams(owner, ("sampler", "sampler.draw"))
    for each in (Stock, Stock()):
        check_seams(each, replaced={"draw": lambda self, logits, noise: None})


def test_all_that_is_wrong_is_named():
    with pytest.raises(SeamError, match=r"Stock has no sampler, draw\.it, which"):
        check_seams(Stock(), ("sampler", "draw.it", "draw"))
    with pytest.raises(
        SeamError, match=r"Stock\.draw of this vLLM takes \(logits, noise\); .* takes \(logits\)"
    ) as caught:
        check_seams(Stock, ("more",), {"draw": lambda self, logits: None})
    assert "Stock has no more" in str(caught.value)
