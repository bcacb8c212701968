"""Where an output ends, and how it becomes text: inside accepted drafts as anywhere else."""

from __future__ import annotations

import pytest
from engine_fixtures import ByteTokenizer, FunctionDrafter, ScriptedModel, oracle

from ascend_spec.engine import LLM
from ascend_spec.engine.detokenizer import Detokenizer
from ascend_spec.types import SamplingParams

EOS = 256
VOCAB = 260
K = 20


def engine(text: str | bytes, *, tail: tuple[int, ...] = (), drafts: bool = True, **options) -> LLM:
    """An engine whose greedy continuation of "P" is ``text``, then ``tail``; a drafter that knows it."""
    script = [ord("P"), *(text.encode() if isinstance(text, str) else text), *tail]
    model = ScriptedModel(script, VOCAB, 128, eos=(EOS,))
    drafter = oracle([model.script.tolist()], K) if drafts else None
    config = {"method": "ngram", "num_speculative_tokens": K} if drafts else None
    return LLM(model, tokenizer=ByteTokenizer(), speculative_config=config, drafter=drafter, **options)


def generate(llm: LLM, **params):
    """One output, with the chunks that were streamed for it."""
    chunks = []
    params = SamplingParams(temperature=0.0, **{"max_tokens": 100, **params})
    output = llm.generate("P", params, callback=chunks.append)[0]
    assert "".join(chunk.text for chunk in chunks) == output.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == output.token_ids
    assert tuple(flag for chunk in chunks for flag in chunk.accepted) == output.accepted
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [output.finish_reason]
    assert not llm.has_unfinished_requests
    return output, chunks


@pytest.mark.parametrize("drafts", [True, False], ids=["drafts", "plain"])
class TestEnd:
    def test_end_of_sequence_inside_a_block(self, drafts):
        output, _ = generate(engine("ab", tail=(EOS, 99, 98), drafts=drafts))
        assert output.token_ids == (97, 98, EOS)
        assert (output.text, output.finish_reason, output.stop_reason) == ("ab", "stop", None)
        assert any(output.accepted) == drafts

    def test_end_of_sequence_may_be_ignored(self, drafts):
        output, _ = generate(engine("ab", tail=(EOS, 99, 98), drafts=drafts), ignore_eos=True, max_tokens=5)
        assert output.token_ids == (97, 98, EOS, 99, 98)
        assert (output.text, output.finish_reason) == ("abcb", "length")

    def test_stop_token(self, drafts):
        output, _ = generate(engine("abcdef", drafts=drafts), stop_token_ids=(ord("d"),))
        assert output.token_ids == tuple(b"abcd")
        assert (output.text, output.finish_reason, output.stop_reason) == ("abc", "stop", ord("d"))

    @pytest.mark.parametrize("max_tokens", range(1, 10))
    def test_max_tokens(self, drafts, max_tokens):
        output, _ = generate(engine("abcdefghijkl", drafts=drafts), max_tokens=max_tokens)
        assert output.token_ids == tuple(b"abcdefghijkl"[:max_tokens])
        assert output.finish_reason == "length"
        assert len(output.accepted) == max_tokens

    @pytest.mark.parametrize("length", [28, 30, 31])
    def test_max_model_len(self, drafts, length):
        model = ScriptedModel([n % 50 for n in range(64)], VOCAB, 64)
        drafter = oracle([model.script.tolist()], 5) if drafts else None
        config = {"method": "ngram", "num_speculative_tokens": 5} if drafts else None
        llm = LLM(model, speculative_config=config, drafter=drafter, max_model_len=32)
        params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        output = llm.generate([n % 50 for n in range(length)], params)[0]
        assert list(output.token_ids) == list(range(length, 32))
        assert output.finish_reason == "length"
        assert output.text is None
        assert llm.metrics.num_draft_tokens == (max(0, 32 - length - 2) if drafts else 0)  # no row is wasted

    @pytest.mark.parametrize("stop", ["cd", "c", "bcdef", "a"])
    def test_stop_string_across_tokens(self, drafts, stop):
        output, _ = generate(engine("abcdefgh", drafts=drafts), stop=(stop,))
        end = "abcdefgh".index(stop)
        assert output.text == "abcdefgh"[:end]
        assert output.token_ids == tuple(b"abcdefgh"[: end + len(stop)])
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)

    def test_the_first_of_several_stop_strings_wins(self, drafts):
        output, _ = generate(engine("one two three", drafts=drafts), stop=("three", "two", "wo"))
        assert (output.text, output.stop_reason) == ("one ", "two")

    def test_min_tokens_forbids_what_would_end(self, drafts):
        """The script wants to stop at once; the runner-up (id 0, all else being equal) comes until it may."""
        output, _ = generate(engine("", tail=(EOS, EOS, EOS, EOS), drafts=drafts), min_tokens=2)
        assert output.token_ids == (0, 0, EOS)
        output, _ = generate(engine("xxxx", drafts=drafts), min_tokens=2, stop_token_ids=(ord("x"), 0))
        assert output.token_ids == (1, 1, ord("x"))

    def test_min_tokens_overlooks_early_stop_strings(self, drafts):
        output, _ = generate(engine("ab ab ab", drafts=drafts), min_tokens=3, stop=("ab",))
        assert (output.text, output.token_ids) == ("ab ", tuple(b"ab ab"))


@pytest.mark.parametrize("params", [{}, {"stop": ("zz", "9")}])
@pytest.mark.parametrize("drafts", [True, False], ids=["drafts", "plain"])
@pytest.mark.parametrize(
    "text",
    [
        "grüße 世界 🙂🏽!",
        "🙂",
        b"ab\xf0\x9f",
        b"\xff\xfe\xfd\xfc\xfb ok",
        b"\xe4\xb8",
        b"a\xe4\xb8b\xe4\xb8\x96z",
    ],
)
def test_bytes_become_text_as_a_whole_decode_has_it(text, drafts, params):
    data = text.encode() if isinstance(text, str) else text
    output, chunks = generate(engine(text, tail=(EOS,), drafts=drafts), **params)
    assert output.text == data.decode(errors="replace")
    if isinstance(text, str):
        assert not any("\ufffd" in chunk.text for chunk in chunks)


def test_text_is_streamed_at_once_unless_it_may_become_a_stop_string():
    _, chunks = generate(engine("aXbXYcXYZ", drafts=False), stop=("XYZ",))
    assert [chunk.text for chunk in chunks] == ["a", "", "Xb", "", "", "XYc", "", "", ""]


def test_pieces_tell_accepted_drafts_from_the_targets_own_tokens():
    def function(history, wanted):
        return [ord("P") + 0, *[1] * 3] if len(history) == 1 else [ord("c"), ord("d"), ord("z")]

    model = ScriptedModel([ord("P"), *b"abcdefgh", EOS], VOCAB, 128, eos=(EOS,))
    config = {"method": "ngram", "num_speculative_tokens": 3}
    llm = LLM(
        model, tokenizer=ByteTokenizer(), speculative_config=config, drafter=FunctionDrafter(function, 3)
    )
    output, chunks = generate(llm, max_tokens=7)
    # the prompt's step gives "a"; "c" is wrong after it, so the target says "b"; then "cd" are right
    assert chunks[2].pieces == (("c", True), ("d", True), ("e", False))
    assert output.accepted == (False, False, True, True, False, False, False)


def test_a_callback_may_abort_itself_and_others():
    llm = engine("abcdefgh", drafts=False)
    seen = []

    def callback(chunk):
        seen.append((chunk.request_id, chunk.text, chunk.finish_reason))
        if len(seen) == 5:  # the first request's third chunk
            for request_id in ("b", "a"):
                assert llm.abort(request_id).text == "abc"

    for request_id in "ab":
        llm.add_request("P", SamplingParams(temperature=0.0), callback=callback, request_id=request_id)
    while llm.has_unfinished_requests:
        llm.step()
    assert [(text, reason) for name, text, reason in seen if name == "a"] == [
        ("a", None), ("b", None), ("c", None), ("", "abort"),
    ]  # fmt: skip
    assert [entry for entry in seen if entry[0] == "a"] == [
        ("a", *entry[1:]) for entry in seen if entry[0] == "b"
    ]


def test_generate_returns_what_a_callback_aborted():
    llm = engine("abcdefgh", drafts=False)
    outputs = llm.generate(
        ["P", "P"],
        SamplingParams(temperature=0.0, max_tokens=5),
        callback=lambda chunk: llm.abort(chunk.request_id) if chunk.text == "b" else None,
    )
    assert [(output.text, output.finish_reason) for output in outputs] == [("ab", "abort")] * 2


def test_a_callback_that_raises_leaves_the_engine_usable():
    llm = engine("abcdefgh", tail=(EOS,))

    def callback(chunk):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["P", "P", "P"], SamplingParams(temperature=0.0), callback=callback)
    assert not llm.has_unfinished_requests
    assert generate(llm)[0].text == "abcdefgh"


def test_abort_returns_what_there_is():
    llm = engine("abcdefgh", drafts=False)
    request_id = llm.add_request("P", SamplingParams(temperature=0.0))
    for _ in range(3):
        llm.step()
    output = llm.abort(request_id)
    assert (output.text, output.token_ids, output.finish_reason) == ("abc", tuple(b"abc"), "abort")
    assert llm.step() == []


def test_a_detokenizer_keeps_the_space_that_a_tokenizer_drops_at_the_start():
    class Sentences:
        """Decodes words with spaces between them, as SentencePiece does."""

        def decode(self, ids, skip_special_tokens=True):
            return " ".join("abcdef"[token] for token in ids)

    detokenizer = Detokenizer(Sentences(), [0, 1, 2], ())
    for token in (3, 4, 5):
        detokenizer.append(token, accepted=False)
    assert detokenizer.text == " d e f"


@pytest.mark.parametrize(("rule", "lossless"), [("standard", "true"), ("typical", "false")])
def test_metrics_tell_the_rule(rule, lossless):
    """Under the name, and with the labels, that the plugin for vLLM has at /metrics."""
    config = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "ascend_spec": {"rejection_sample_method": rule},
    }
    llm = LLM(ScriptedModel([1, 2], VOCAB, 128), speculative_config=config)
    samples = [name for name in llm.metrics.prometheus() if name.startswith("ascend_spec:rule_info")]
    assert samples == [f'ascend_spec:rule_info{{lossless="{lossless}",rule="{rule}"}}']
    assert llm.metrics.prometheus()[samples[0]] == 1
