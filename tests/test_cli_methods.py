"""The command ``methods``, and docs/configuration.md, whose tables it writes and whose examples must work."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from config_fixtures import restored_registry
from engine_fixtures import ScriptedModel
from test_cli_config import checked, run

from ascend_spec.cli import contracts, methods
from ascend_spec.config import (
    BUILT_IN,
    RULES,
    AscendSpecConfig,
    SpeculativeConfig,
    SpeculatorConfig,
    load_speculative_config,
    method_class,
    register_speculative_method,
)
from ascend_spec.config.methods.draft_model import PardConfig
from ascend_spec.engine import LLM
from ascend_spec.types import SamplingParams

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"


# ----------------------------------------------------------------------------------------------------- methods
def check_expressions_in_k():
    assert contracts.expression_in_k(lambda k: 0) == "0"
    assert contracts.expression_in_k(lambda k: k) == "K"
    assert contracts.expression_in_k(lambda k: k + 1) == "K + 1"
    assert contracts.expression_in_k(lambda k: k - 2) == "K - 2"
    assert contracts.expression_in_k(lambda k: 3 * k) == "3K"
    assert contracts.expression_in_k(lambda k: 2 * k - 5) == "2K - 5"
    assert contracts.expression_in_k(lambda k: k * k) == "?"
    assert contracts.expression_in_k(lambda k: 1 // 0) == "?"
    assert contracts.expression_in_k(lambda k: "one-hot") == "one-hot"
    assert contracts.expression_in_k(lambda k: None) is None


def test_expressions_in_k():
    check_expressions_in_k()


def listed(capsys) -> list[dict]:
    code, out, err = run(capsys, "methods", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["methods"]


@pytest.mark.parametrize("num_drafts", [1, 4, 5])
def test_what_is_listed_is_what_contracts_say(capsys, num_drafts):
    rows = listed(capsys)
    assert [row["method"] for row in rows if not row["special_case"]] == list(BUILT_IN)
    by_name = {contract.__name__: contract for _, contract in contracts.contracts()}
    assert {"PardConfig", "PEagleConfig", "MultiModuleMTPConfig", "XPressConfig"} <= set(by_name)
    for row in rows:
        contract = by_name[row["contract"]](SpeculativeConfig(num_speculative_tokens=num_drafts))
        for fact in methods.COUNTS.values():
            assert eval(row[fact], {"K": num_drafts}) == getattr(contract, fact)
        for fact in methods.TRAITS:
            assert row[fact] is getattr(contract, fact)
        assert row["supported_options"] == sorted(contract.supported_options)
        assert row["built"] == (contract.speculator_class is not None)
        assert row["summary"]


class ThirdConfig(SpeculatorConfig):
    """Reads what is not there | always. And more."""

    method = "third"
    speculator_class = "nowhere:Third"
    supported_options = frozenset({"speculator_options"})

    @property
    def num_lookahead_tokens(self) -> int:
        return self.draft.get("n")


def test_registered_methods_are_listed(capsys):
    with restored_registry():
        register_speculative_method("third", ThirdConfig)
        (row,) = [row for row in listed(capsys) if row["registered"]]
        assert row["method"] == "third"
        assert row["summary"] == "Reads what is not there | always"
        assert (row["num_lookahead_tokens"], row["in_vllm"], row["built"]) == ("?", False, True)
        _, out, _ = run(capsys, "methods", "--markdown")
        assert "| `third` | Reads what is not there \\| always | yes | registered | none |" in out
        check_the_docs_are_in_step()  # a plugin does not change them


@pytest.mark.parametrize("table", ["methods", "rules", "fields"])
def test_tables_fit_the_screen(capsys, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "methods", "--table", table)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    names = {
        "methods": list(BUILT_IN),
        "rules": list(RULES),
        "fields": ["num_speculative_tokens", "[first batch size"],
    }[table]
    for name in names:
        assert name in out


def test_rules_and_fields_as_json(capsys):
    rules = json.loads(run(capsys, "methods", "--table", "rules", "--json")[1])["rules"]
    assert {rule["name"]: rule["lossless"] for rule in rules} == {
        name: rule.lossless for name, rule in RULES.items()
    }
    rows = json.loads(run(capsys, "methods", "--table", "fields", "--json")[1])["fields"]
    names = [name for name in SpeculativeConfig.model_fields if name != "ascend_spec"]
    names += [f"ascend_spec.{name}" for name in AscendSpecConfig.model_fields]
    assert [row["field"] for row in rows] == names
    groups = [row["group"] for row in rows]
    assert set(methods.GROUPS.values()) == set(groups)
    assert next(row["default"] for row in rows if row["field"] == "fly_entropy_top_k") == 3


# -------------------------------------------------------------------------------------------------------- docs
def check_the_docs_are_in_step():
    """Renew them by: ascend-spec methods --markdown docs/configuration.md"""
    text = DOCS.read_text()
    renewed, found = methods._renewed(text)
    assert found == len(methods.TABLES)
    assert renewed == text


def test_the_docs_are_in_step():
    check_the_docs_are_in_step()


def test_a_file_is_renewed(capsys, tmp_path):
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- rules -->\nold\n<!-- end of rules -->\nafter\n")
    assert run(capsys, "methods", "--markdown", file) == (0, "", "")
    table = run(capsys, "methods", "--table", "rules", "--markdown")[1]
    assert file.read_text() == f"before\n<!-- rules -->\n{table}<!-- end of rules -->\nafter\n"
    for bad, says in ((tmp_path / "none.md", "cannot be read"), (DOCS.parents[1] / "LICENSE", "no markers")):
        code, out, err = run(capsys, "methods", "--markdown", bad)
        assert (code, out) == (2, "")
        assert says in err


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_configs_in_the_docs_are_right(capsys, tmp_path):
    (text,) = blocks("yaml")
    file = tmp_path / "drafts.yaml"
    file.write_text(text)
    assert load_speculative_config(str(file)) == load_speculative_config(yaml.safe_load(text))
    found = re.findall(r"speculative-config '({.*?})'", DOCS.read_text())
    assert found
    for config in found:
        assert load_speculative_config(config, embedded=True).method == "ngram"


def test_the_method_in_the_docs_works(capsys, monkeypatch, tmp_path):
    (source,) = blocks("python")
    (tmp_path / "repeat_drafter.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "repeat_drafter", raising=False)
    with restored_registry():
        __import__("repeat_drafter")
        config = {"method": "repeat", "num_speculative_tokens": 3}
        model = ScriptedModel([1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 5, 6], 8, 16)
        llm = LLM(model, speculative_config=config)
        (output,) = llm.generate([1, 2], SamplingParams(temperature=0.0, max_tokens=14))
        assert list(output.token_ids)[:10] == [3, 3, 3, 3, 3, 3, 3, 3, 5, 6]
        assert llm.metrics.num_accepted_tokens >= 6
        assert checked(capsys, json.dumps(config), "--embedded")["method"]["name"] == "repeat"
        (entry,) = re.findall(r'^repeat = "(\w+):(\w+)"$', DOCS.read_text(), flags=re.MULTILINE)
        assert getattr(sys.modules[entry[0]], entry[1]) is method_class("repeat")
    monkeypatch.delitem(sys.modules, "repeat_drafter")


# ----------------------------------------------------------------------------------------------------- mutants
def _without_offsets(monkeypatch):
    monkeypatch.setattr(contracts, "_written", lambda slope, offset: "K" if slope else str(offset))


def _without_special_cases(monkeypatch):
    monkeypatch.setattr(contracts, "_special", lambda contract: [])


def _another_contract(monkeypatch):
    monkeypatch.setattr(PardConfig, "max_num_new_slots_for_drafting", 1)


def _another_default(monkeypatch):
    monkeypatch.setattr(SpeculativeConfig.model_fields["fly_entropy_top_k"], "default", 4)


def _another_description(monkeypatch):
    monkeypatch.setattr(AscendSpecConfig.model_fields["match"], "description", "something else")


def _a_lossy_rule_called_lossless(monkeypatch):
    monkeypatch.setitem(RULES, "fly", replace(RULES["fly"], lossless=True))


@pytest.mark.parametrize(
    ("mutate", "check"),
    [
        (_without_offsets, check_expressions_in_k),
        (_without_offsets, check_the_docs_are_in_step),
        (_without_special_cases, check_the_docs_are_in_step),
        (_another_contract, check_the_docs_are_in_step),
        (_another_default, check_the_docs_are_in_step),
        (_another_description, check_the_docs_are_in_step),
        (_a_lossy_rule_called_lossless, check_the_docs_are_in_step),
    ],
)
def test_mutants_are_found(monkeypatch, mutate, check):
    check()
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check()
