"""Configurations whose fields are each allowed, but not together: the other half of :mod:`wrong_configs`."""

from __future__ import annotations

from wrong_configs import ENDLESS, GOOD, HUGE, RANGES, Wrong

# ---- what fields may mean together
EAGLE = {"method": "eagle", "model": "{shelf}/eagle", "num_speculative_tokens": 4}
DRAFT = {"method": "draft_model", "model": "{shelf}/draft", "num_speculative_tokens": 4}
SYNTHETIC = {**GOOD, "rejection_sample_method": "synthetic"}
FLY = {**GOOD, "rejection_sample_method": "fly"}
CHECKS = [
    Wrong({}, ("model", "num_speculative_tokens"), ("Neither 'method' nor 'model'", "Add it.")),
    Wrong({"num_speculative_tokens": 4}, ("model",), ("Neither 'method' nor 'model'", '"ngram"')),
    Wrong({"method": "ngram"}, ("num_speculative_tokens",), ("is missing", "from 1 to 1048576")),
    *(
        Wrong({**GOOD, "method": method}, ("model",), ("'model' is missing", repr(method), "Add it."))
        for method in ("draft_model", "eagle", "eagle3", "dflash", "medusa", "mlp_speculator")
    ),
    Wrong(
        {**GOOD, "prompt_lookup_min": 5, "prompt_lookup_max": 4},
        ("prompt_lookup_min",),
        ("as 5", "as 4", "must not be larger"),
    ),
    Wrong({**GOOD, "method": "custom_class"}, ("model",), ("is missing", "dotted path", "my_module.MyDrafter")),
    Wrong({**GOOD, "method": "custom_class", "model": "a/b"}, ("model",), ("'a/b'", "dotted path")),
    # options of single methods
    *(
        Wrong({**GOOD, name: value}, (name,), (f"'{name}' was given", "'ngram' does not support it"))
        for name, value in {
            "dspark_draft_topk": 4, "draft_lm_head_quantization": "fp8", "xpress_topc": 0,
            "index_share_for_mtp_iteration": False, "speculator_options": {},
        }.items()
    ),
    Wrong({**DRAFT, "draft_lm_head_quantization": "fp8"}, ("draft_lm_head_quantization",), ("'draft_model'",)),
    Wrong({**EAGLE, "dspark_draft_topk": 4}, ("dspark_draft_topk",), ("'eagle'", "Remove it")),
    Wrong({**EAGLE, "use_heterogeneous_vocab": True}, ("use_heterogeneous_vocab",), ("'eagle'", "vocabulary")),
    Wrong({**GOOD, "use_heterogeneous_vocab": True}, ("use_heterogeneous_vocab",), ("'ngram'", "Remove it")),
    Wrong({**GOOD, "draft_sample_method": "probabilistic"}, ("draft_sample_method",), ("deterministic",)),
    Wrong(
        {**EAGLE, "draft_sample_method": "probabilistic", "use_local_argmax_reduction": True},
        ("use_local_argmax_reduction",),
        ("greedy", "Remove one"),
    ),
    Wrong(
        {**DRAFT, "use_heterogeneous_vocab": True, "use_local_argmax_reduction": True},
        ("use_local_argmax_reduction",),
        ("full logits", "Remove one"),
    ),
    Wrong(
        {**EAGLE, "enable_adaptive_verification": True, "use_local_argmax_reduction": True},
        ("enable_adaptive_verification",),
        ("draft logits", "Remove one"),
    ),
    Wrong(
        {"method": "dspark", "model": "{shelf}/dspark", "dspark_draft_topk": 4, "draft_tensor_parallel_size": 2},
        ("dspark_draft_topk",),
        ("it needs 1",),
    ),
    # rules
    Wrong(SYNTHETIC, ("synthetic_acceptance_rates",), ("neither", "exactly one", "Add one")),
    Wrong(
        {**SYNTHETIC, "synthetic_acceptance_rates": [1, 1, 1, 1], "synthetic_acceptance_length": 2},
        ("synthetic_acceptance_rates",),
        ("both", "exactly one", "Remove one"),
    ),
    *(
        Wrong({**SYNTHETIC, "synthetic_acceptance_length": length}, ("synthetic_acceptance_length",), ("5",))
        for length in (0, 0.99, -0.5, 5.01, 6, 1e300)
    ),
    *(
        Wrong({**SYNTHETIC, "synthetic_acceptance_rates": rates}, ("synthetic_acceptance_rates",), (part,))
        for rates, part in (
            ([], "4 numbers"), ([1.0], "4 numbers"), ([1] * 5, "4 numbers"),
            ([0.5, 0.6, 0.1, 0.1], "do not increase"), ([0, 0, 0, 1e-9], "do not increase"),
            ([1.1, 1, 1, 1], "from 0 to 1"), ([1, 1, 1, -0.1], "from 0 to 1"),
        )
    ),
    *(
        Wrong({**GOOD, "rejection_sample_method": rule, name: value}, (name,), ('only the rule "synthetic"', rule))
        for rule in ("standard", "block", "fly")
        for name, value in (("synthetic_acceptance_rates", [1] * 4), ("synthetic_acceptance_length", 2))
    ),
    Wrong({**FLY, "fly_window_size": 4}, ("fly_window_size",), ("given as 4", "smaller than", "which is 4")),
    Wrong({**FLY, "fly_window_size": 9}, ("fly_window_size",), ("given as 9", "Lower it")),
    Wrong(
        {**FLY, "num_speculative_tokens": 1},
        ("num_speculative_tokens",),
        ("at least 2", "'num_speculative_tokens' is 1"),
    ),
    Wrong(
        {**FLY, "method": "extract_hidden_states"},
        ("rejection_sample_method",),
        ('"fly"', "proposes no drafts"),
    ),
    # checkpoints
    Wrong({**EAGLE, "model": "/no/such/place"}, ("model",), ("'/no/such/place'", "correct the path")),
    Wrong({**EAGLE, "model": "./no such place"}, ("model",), ("'./no such place'", "config.json")),
    Wrong({**EAGLE, "model": "~nobody-of-that-name/x"}, ("model",), ("config.json",)),
    Wrong({**EAGLE, "model": "/" + "x" * 100_000}, ("model",), ("xxx...xxx", "config.json")),
    Wrong({**EAGLE, "model": "{shelf}/eagle\0"}, ("model",), (r"\x00", "cannot be a path", "correct the path")),
    Wrong({**EAGLE, "model": "{shelf}/eagle\ud800"}, ("model",), (r"\ud800",)),
    Wrong({**EAGLE, "model": "{shelf}/eagle/config.json"}, ("model",), ("a directory",)),
    Wrong({**EAGLE, "model": "{shelf}/medusa"}, ("method",), ("'eagle'", "'medusa'", "Correct one")),
    Wrong({**EAGLE, "method": "eagle3"}, ("method",), ("'eagle3'", "'eagle'", "Correct one")),
    Wrong(
        {"method": "medusa", "model": "{shelf}/medusa", "num_speculative_tokens": 6},
        ("num_speculative_tokens",),
        ("given as 6", "5 heads", "at most 5"),
    ),
    Wrong(
        {"method": "mtp", "model": "{shelf}/deepseek-3", "num_speculative_tokens": 4},
        ("num_speculative_tokens",),
        ("given as 4", "predicts 3 tokens at a time", "Use 3"),
    ),
]  # fmt: skip
SMALL = {"name": "llama", "max_num_seqs": 4, "max_num_batched_tokens": 64}
WITH_TARGET = [
    Wrong({**GOOD, "num_speculative_tokens": 64}, ("num_speculative_tokens",),
          ("max_model_len is 64", "to 63."), target={**SMALL, "max_num_batched_tokens": 999}),
    Wrong({**GOOD, "num_speculative_tokens": 9}, ("num_speculative_tokens",),
          ("max_num_batched_tokens is 9", "to 8 or"), target={**SMALL, "max_num_batched_tokens": 9}),
    Wrong(GOOD, ("num_speculative_tokens",), ("max_num_batched_tokens is 1. Raise",),
          target={**SMALL, "max_num_batched_tokens": 1}),
    Wrong(GOOD, ("num_speculative_tokens",), ("limit of query rows a request is 4", "to 3 or use another"),
          target={**SMALL, "max_query_len": 4}),
    Wrong({**DRAFT, "parallel_drafting": True}, ("num_speculative_tokens",),
          ("nothing could be scheduled", "max_num_seqs", "max_num_batched_tokens"),
          target={**SMALL, "max_num_seqs": 16, "runner": "v1"}),
    Wrong({**DRAFT, "max_model_len": 65}, ("max_model_len",), ("given as 65", "at most 64"), target=SMALL),
    Wrong({**DRAFT, "draft_tensor_parallel_size": 3}, ("draft_tensor_parallel_size",),
          ("given as 3", "tensor parallel size, 2"), target={**SMALL, "tensor_parallel_size": 2}),
    Wrong(DRAFT, ("draft_tensor_parallel_size", "tensor_parallel_size"), ("8 attention heads", "to 1"),
          target={**SMALL, "tensor_parallel_size": 16}),
    Wrong({**DRAFT, "model": "{shelf}/mixtral"}, ("draft_tensor_parallel_size",), ("4 experts", "8 ranks"),
          target={**SMALL, "name": "mixtral", "tensor_parallel_size": 8, "enable_expert_parallel": True}),
    Wrong({**DRAFT, "model": "{shelf}/other-vocabulary"}, ("model",), ("has 99 tokens", "has 128", "use_hetero"),
          target=SMALL),
    Wrong({**EAGLE, "model": "{shelf}/half", "draft_lm_head_quantization": "fp8"},
          ("draft_lm_head_quantization",), ("float16", "float32", "Remove it"), target=SMALL),
    Wrong(GOOD, ("method", "draft_sample_method"), ("watermarking", '"probabilistic"'),
          target={**SMALL, "watermarking": True}),
    Wrong({**EAGLE, "draft_sample_method": "probabilistic", "rejection_sample_method": "block"},
          ("rejection_sample_method",), ('"standard" with watermarking',), target={**SMALL, "watermarking": True}),
    Wrong(GOOD, ("method",), ("prefill context parallelism", "given as 2"),
          target={**SMALL, "prefill_context_parallel_size": 2}),
    Wrong({"num_speculative_tokens": 1}, ("model",), ("MTP layers", '"mtp"'), target={**SMALL, "name": "deepseek"}),
    Wrong({"method": "dspark", "model": "{shelf}/dspark", "dspark_draft_topk": 129}, ("dspark_draft_topk",),
          ("given as 129", "size, 128"), target=SMALL),
    Wrong({"method": "dflash", "model": "{shelf}/xpress", "num_speculative_tokens": 4, "xpress_topc": 129},
          ("xpress_topc",), ("given as 129", "size, 128"), target=SMALL),
    # what the embedded engine is not built for
    Wrong({**GOOD, "method": "self_speculative"}, ("method",), ("not built yet", '"ngram"'), embedded=True),
    Wrong({**GOOD, "moe_backend": "triton", "revision": "main"}, ("moe_backend", "revision"),
          ("'triton'", "'main'", "it is for vLLM"), embedded=True),
    *(
        Wrong(GOOD, (name,), (f"given as {value!r}", "in the embedded engine", "in vLLM"),
              target={**SMALL, "name": "mixtral", name: value}, embedded=True)
        for name, value in {
            "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2,
            "enable_expert_parallel": True, "quantization": "fp8", "kv_cache_dtype": "fp8",
            "enable_prefix_caching": True, "has_kv_connector": True, "graph_mode": "piecewise",
        }.items()
    ),
    Wrong(GOOD, ("method", "prefill_context_parallel_size"), ("given as 2; it must be 1",),
          target={**SMALL, "prefill_context_parallel_size": 2}, embedded=True),
    Wrong(GOOD, ("method", "draft_sample_method", "watermarking"), ("it must be False",),
          target={**SMALL, "watermarking": True}, embedded=True),
    Wrong({**GOOD, "method": "ngrm"}, ("method", "pipeline_parallel_size"), (),
          target={**SMALL, "pipeline_parallel_size": 2}, embedded=True),
]  # fmt: skip
TABLES = [
    Wrong({**GOOD, RANGES: table}, (RANGES,), parts)
    for table, parts in (
        ([], ("at least one range",)),
        ([[0, 8, 4]], ("[0, 8, 4]", "1 <= first <= last")),
        ([[-3, 8, 4]], ("[-3, 8, 4]", "1 <= first <= last")),
        ([[8, 1, 4]], ("[8, 1, 4]", "1 <= first <= last")),
        ([[1, 8, -1]], ("[1, 8, -1]", "K of 0 or more")),
        ([[1, 8, 4], [0, 0, 4]], ("[0, 0, 4]",)),
        ([[2, 8, 4]], ("[2, 8, 4]", "begin at batch size 1")),
        ([[9, 16, 2], [2, 8, 4]], ("[2, 8, 4]", "begin at batch size 1")),
        ([[1, 8, 4], [8, 16, 2]], ("[[1, 8, 4], [8, 16, 2]]", "do not overlap")),
        ([[8, 16, 2], [1, 8, 4]], ("[[1, 8, 4], [8, 16, 2]]", "do not overlap")),
        ([[1, 8, 4], [1, 8, 4]], ("do not overlap",)),
        ([[1, 100, 4], [2, 3, 2]], ("[[1, 100, 4], [2, 3, 2]]", "do not overlap")),
        ([[1, HUGE, 4], [2, 3, 2]], ("do not overlap",)),
        ([[1, ENDLESS, -4]], ("too large to print", "K of 0 or more")),
    )
] + [
    Wrong({**GOOD, RANGES: table}, (RANGES, RANGES), parts)
    for table, parts in (
        ([[1, 8, 4], [2, 3, -1]], ("was given as [2, 3, -1]", "[[1, 8, 4], [2, 3, -1]]")),
        ([[1, 100, 4], [2, 3, 2], [50, 60, 1]], ("[[1, 100, 4], [2, 3, 2]]", "[[1, 100, 4], [50, 60, 1]]")),
        ([[2, 8, 4], [8, 9, 1]], ("begin at batch size 1", "do not overlap")),
        ([[3, 2, -1], [4, 5, 1]], ("1 <= first <= last", "K of 0 or more")),
        ([[0, 2, 1], [5, 4, 1]], ("[0, 2, 1]", "[5, 4, 1]")),
    )
]
TWO_WAYS = [
    Wrong(GOOD, (name,), (f"'{name}' was given", argument, "Remove one"), separate={argument: value})
    for name, argument, value in (
        ("method", "spec_method", "suffix"),
        ("method", "spec_method", "ngram"),
        ("num_speculative_tokens", "spec_tokens", 4),
    )
] + [
    Wrong(EAGLE, ("model",), ("spec_model",), separate={"spec_model": "x"}),
    Wrong(None, ("num_speculative_tokens",), ("is missing",), separate={"spec_method": "ngram"}),
    Wrong(
        None,
        ("num_speculative_tokens",),
        ("given as '4'",),
        separate={"spec_method": "ngram", "spec_tokens": "4"},
    ),
    Wrong(None, ("model",), ("Neither",), separate={"spec_tokens": 4}),
    Wrong({"num-speculative-tokens": 4, **GOOD}, ("num_speculative_tokens",), ("twice", "hyphens")),
    Wrong({**GOOD, "ascend-spec": {}, "ascend_spec": {}}, ("ascend_spec",), ("twice", "hyphens")),
]

# ---- several at once: all of them in one run, and none that only follows from another
SEVERAL = [
    Wrong({"num_speculative_tokens": 0, "prompt_lookup_max": 0, "colour": "red"},
          ("colour", "model", "num_speculative_tokens", "prompt_lookup_max")),
    Wrong({"method": "ngrm", "num_speculative_tokens": "4", "fly_window_size": 0, "ascend_spec": {"match": 1}},
          ("ascend_spec.match", "fly_window_size", "method", "num_speculative_tokens")),
    Wrong({"metod": "eagle", "num_speculative_token": 4}, ("metod", "num_speculative_token")),
    Wrong({"model": 3, "num_speculative_tokens": 4}, ("model",)),
    Wrong({"ascend_spec": 3, "num_speculative_tokens": 4}, ("ascend_spec",)),
    Wrong({**GOOD, "method": 3, "xpress_topc": 4}, ("method",)),
    Wrong({**GOOD, "rejection_sample_method": "syntetic", "synthetic_acceptance_length": 2},
          ("rejection_sample_method",)),
    Wrong({**GOOD, "ascend_spec": {"rejection_sample_method": 3}, "synthetic_acceptance_length": 2},
          ("ascend_spec.rejection_sample_method",)),
    Wrong({**SYNTHETIC, "synthetic_acceptance_length": "2"}, ("synthetic_acceptance_length",)),
    Wrong({**SYNTHETIC, "synthetic_acceptance_rates": "2"}, ("synthetic_acceptance_rates",)),
    Wrong({**SYNTHETIC, "method": "suffix", "num_speculative_tokens": 0, "synthetic_acceptance_length": 30},
          ("num_speculative_tokens",)),
    Wrong({**SYNTHETIC, "num_speculative_tokens": 0, "synthetic_acceptance_rates": [2, 1]},
          ("num_speculative_tokens", "synthetic_acceptance_rates"), ("from 0 to 1",)),
    Wrong({**FLY, "method": "suffix", "num_speculative_tokens": 0, "fly_window_size": 30},
          ("num_speculative_tokens",)),
    Wrong({**SYNTHETIC, "synthetic_acceptance_rates": [2, 1, 1]},
          ("synthetic_acceptance_rates", "synthetic_acceptance_rates"), ("4 numbers", "from 0 to 1")),
    Wrong({**GOOD, RANGES: [[2, 8, 4]], "xpress_topc": 4, "prompt_lookup_min": 9, "prompt_lookup_max": 8,
           "use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic",
           "use_local_argmax_reduction": True, "synthetic_acceptance_length": 2, "quantization": ""},
          (RANGES, "xpress_topc", "prompt_lookup_min", "use_heterogeneous_vocab", "draft_sample_method",
           "use_local_argmax_reduction", "use_local_argmax_reduction", "synthetic_acceptance_length",
           "quantization")),
    Wrong({**GOOD, "tensor_parallel_size": 2, "draft_tensor_parallel_size": 0},
          ("tensor_parallel_size", "draft_tensor_parallel_size")),
    Wrong({**GOOD, "colour": 1, 2: 3, "prompt_lookup_max": 0}, ("", "colour", "prompt_lookup_max")),
    Wrong({**GOOD, "colour": 1}, ("colour", "num_speculative_tokens"), ("spec_tokens",), separate={"spec_tokens": 2}),
]  # fmt: skip


GROUPS: dict[str, list[Wrong]] = {
    "check": CHECKS,
    "target": WITH_TARGET,
    "table": TABLES,
    "two-ways": TWO_WAYS,
    "several": SEVERAL,
}
