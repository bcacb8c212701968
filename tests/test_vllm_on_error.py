"""``on_error`` inside vLLM, without vLLM: what is caught when. (Where "disable" is refused: ``test_vllm_refusals``.)"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from config_fixtures import Checkpoints, planned

from ascend_spec.vllm.metrics import Metrics
from ascend_spec.vllm.on_error import OnError
from ascend_spec.vllm.ranks import RankMismatchError
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


# ---- one rank of several
@pytest.mark.parametrize("on_error", ["continue", "disable", "raise"])
@pytest.mark.parametrize(("runner", "ranks"), [("v1", 1), ("v1", 2), ("v2", 1), ("v2", 2)])
def test_a_rank_that_would_part_from_the_others_ends_the_engine(tmp_path, on_error, runner, ranks):
    """On V2 a rank goes on from its own drafts; on V1 all get those of one."""
    given = plan(tmp_path, on_error, runner=runner, tensor_parallel_size=ranks)
    policy = OnError(given, Metrics(given.rule, is_published=False))
    if on_error == "raise":
        with pytest.raises(OSError, match="no file"):
            policy.propose(fails)
    elif (runner, ranks) == ("v2", 2):
        with pytest.raises(RankMismatchError, match=r"failed on this rank \(OSError: no file\)") as caught:
            policy.propose(fails)
        assert isinstance(caught.value.__cause__, OSError)
    else:
        assert policy.propose(fails) is None


def test_a_rank_that_goes_on_alone_is_noticed(tmp_path, monkeypatch):
    original = OnError.__init__

    def forgetful(self, *args):
        original(self, *args)
        self.parts_ranks = False

    monkeypatch.setattr(OnError, "__init__", forgetful)
    with pytest.raises(pytest.fail.Exception):
        test_a_rank_that_would_part_from_the_others_ends_the_engine(tmp_path, "continue", "v2", 2)


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
