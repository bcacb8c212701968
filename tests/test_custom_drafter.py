"""Drafters of a user's own: the example, and what is said at start of a class that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from engine_fixtures import greedy_reference, tiny_model

from ascend_spec.engine import LLM
from ascend_spec.types import SamplingParams

ROOT = Path(__file__).parents[1]
PROMPTS = [(8, 9, 10, 8, 9), (3,), (5, 5, 5, 5)]
K = 3


def llm(path: str, **options) -> LLM:
    config = {"method": "custom_class", "model": path, "num_speculative_tokens": K, **options}
    return LLM(tiny_model(), speculative_config=config)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """``written(source)`` -> the dotted path of class ``Mine`` in it."""

    def write(source: str) -> str:
        (tmp_path / "drafter_of_mine.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("drafter_of_mine", None)
        return "drafter_of_mine.Mine"

    yield write
    sys.modules.pop("drafter_of_mine", None)


def test_the_example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    engine = llm("custom_drafter.BigramDrafter")
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    outputs = engine.generate([list(prompt) for prompt in PROMPTS], greedy)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert list(output.token_ids) == greedy_reference(prompt, 24)
    assert engine.metrics.num_accepted_tokens > 0
    assert not engine.metrics.fallbacks


def test_the_example_runs_as_a_program(tmp_path):
    """On the demo model, as its first lines say."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "custom_drafter.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "same text: True" in done.stdout
    assert not done.stdout.splitlines()[-1].startswith("0 of")


def test_its_options_reach_it(written):
    path = written("""
        import torch
        from ascend_spec.types import Draft
        class Mine:
            @classmethod
            def from_plan(cls, plan):
                mine = cls()
                mine.token = plan.config.speculator_options["token"]
                return mine
            def propose(self, batch):
                return Draft(torch.full((len(batch.num_tokens), 3), self.token, dtype=torch.int32))
        """)
    assert llm(path, speculator_options={"token": 7}).drafter.token == 7


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "cannot be imported"),
        ("Mine = 3", "is a int; it must be a class"),
        ("class Mine: pass", "needs a class method from_plan(cls, plan), and this one has none"),
        (
            "class Mine:\n    @classmethod\n    def from_plan(cls): return cls()",
            "needs a class method from_plan(cls, plan), and this one has one that cannot be called so",
        ),
        (
            "class Mine:\n    @classmethod\n    def from_plan(cls, plan): return cls()",
            "needs a method propose(self, batch), and this one has none",
        ),
        (
            "class Mine:\n    from_plan = classmethod(lambda cls, plan: cls())\n    def propose(self): pass",
            "needs a method propose(self, batch), and this one has one that cannot be called so",
        ),
        (
            "class Mine:\n    from_plan = classmethod(lambda cls, plan: cls())\n    def propose(self, batch): pass\n"
            "    follow = 3",
            "needs a method follow(self, batch), and this one has none",
        ),
    ],
)
def test_a_class_that_cannot_be_used(written, source, said):
    path = written(source)
    with pytest.raises(ValueError) as caught:
        llm(path)
    assert f"'model' was given as {path!r}" in str(caught.value)
    assert said in str(caught.value)


def test_one_that_raises_costs_its_drafts_only(written, caplog):
    """That step has K=0, logged once, counted; the text stays right. So it is with one that gives nonsense."""
    path = written("""
        import torch
        from ascend_spec.types import Draft
        class Mine:
            from_plan = classmethod(lambda cls, plan: cls())
            calls = 0
            def propose(self, batch):
                self.calls += 1
                if self.calls % 3 == 0:
                    raise RuntimeError("no idea")
                if self.calls == 1:
                    return [[5]]
                if self.calls % 3 == 1:
                    return Draft(torch.zeros(1, dtype=torch.int32))
                return Draft(torch.full((len(batch.num_tokens), 3), 5, dtype=torch.int32))
        """)
    engine = llm(path)
    output = engine.generate(
        [list(PROMPTS[0])], SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    )[0]
    assert list(output.token_ids) == greedy_reference(PROMPTS[0], 24)
    assert "propose returned a list; it must return an ascend_spec.types.Draft" in caplog.text
    reasons = {"drafter failed: RuntimeError", "drafter failed: ValueError"}
    assert set(engine.metrics.fallbacks) == reasons
    assert all(engine.metrics.fallbacks[reason] > 1 for reason in reasons)
    assert engine.metrics.num_draft_tokens > 0
    for reason in reasons:
        assert caplog.text.count(reason) == 1
