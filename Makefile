# Two commands matter: `make serve` and `make test`. Each sets up what it needs and can be run again.
PYTHON ?= python3
# For two cores: a third of a test's time is waiting for processes and time limits, and most of a system test's.
WORKERS ?= 3
SYSTEM_WORKERS ?= 4
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are imported: most of them never are.
INSTALL := install --quiet --disable-pip-version-check --no-compile
PIP := $(BIN)/python -m pip $(INSTALL) -c constraints.txt
# Other environments have no pip of their own: writing one takes as long as a small package.
VENV_FOR_PIP := $(PYTHON) -m venv --without-pip
PIP_INTO := nice $(BIN)/python -m pip --python
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
# Compiled modules and tests are kept, even where the environment says otherwise: collecting the tests takes half the time.
export PYTHONDONTWRITEBYTECODE =
MANIFESTS := pyproject.toml constraints.txt clients/python/pyproject.toml

.PHONY: help setup models serve check docs test setup-system test-system lock bench bench-peers bench-quick soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch is pinned exactly: beside an index for CPUs, an open range may get a newer one from PyPI, with gigabytes of CUDA libraries.
$(VENV)/.serve: $(MANIFESTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pathline needs Python >= 3.11; run make PYTHON=/path/to/python3.11")'
	@echo "setup: installing into $(VENV), half a gigabyte the first time (with CUDA, several): torch alone takes a minute or more"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt) -e '.[training,fleet]' -e clients/python
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	@echo "setup: installing the tools for check and test"
	@$(PIP) -e '.[training,fleet,benchmarks,dev]'
	@touch $@

# Workers of tests that begin together would each compile the loops, for half a minute.
$(VENV)/.loops: $(VENV)/.serve $(wildcard solvers/*.py models/forms/fused/*.py)
	@echo "setup: compiling the loops of the solvers"
	@$(BIN)/python -c 'import torch; from models.forms.fused import residual_mlp as fused; from solvers import warm_up; \
	  warm_up(torch.float32); warm_up(torch.float64); fused.warm_up()'
	@touch $@

# kserve has its own environment (450 MB), because its pins (protobuf < 7, python-dateutil < 3) conflict with ours.
$(VENV)/kserve/.done: tests/system/with_kserve/requirements.txt $(VENV)/.dev
	@echo "setup: kserve, for its client and its model of a manifest"
	@$(VENV_FOR_PIP) $(VENV)/kserve
	@$(PIP_INTO) $(VENV)/kserve $(INSTALL) --no-deps -r tests/system/with_kserve/requirements.txt
	@touch $@

# Servers for the benchmarks to compare with. Their pins conflict with ours (numpy < 2); they use the other packages of .venv.
$(VENV)/peers/.done: studies/serving/peers/requirements.txt $(VENV)/.dev
	@echo "setup: LitServe and Triton, to compare with"
	@$(VENV_FOR_PIP) $(VENV)/peers
	@$(PIP_INTO) $(VENV)/peers $(INSTALL) -r studies/serving/peers/requirements.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$($(VENV)/peers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_pathline.pth"
	@touch $@

setup: $(VENV)/.serve ## make .venv and install everything needed to serve and train

models: setup ## train or write the models that the default repository lacks
	@$(BIN)/python -m training defaults

serve: setup ## set up, serve on 127.0.0.1:8000, and train the default models that are missing behind it
	@exec $(BIN)/python -m training defaults --then $(BIN)/python -m service

check: $(VENV)/.dev ## format, lint, types, import layers
	@echo "check: ruff format"; $(BIN)/ruff format --check .
	@echo "check: ruff"; $(BIN)/ruff check .
	@echo "check: pyright"; nice -n 3 $(BIN)/pyright
	@echo "check: import layers"; $(BIN)/lint-imports
	@echo "check: documentation"; $(SITE) --site-dir $(VENV)/site

docs: $(VENV)/.dev ## build the documentation site in site/
	@$(SITE) --site-dir site
	@echo "docs: open site/index.html"

# An environment on top of a complete .venv, for one test's large or conflicting packages. Arguments: name, contents.
define layered
	@echo "setup: $(2)"
	@$(VENV_FOR_PIP) $(VENV)/$(1)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  >"$$($(VENV)/$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
	@$(PIP_INTO) $(VENV)/$(1) $(INSTALL) --no-deps -r tests/system/with_$(1)/requirements.txt
	@touch $@
endef

# 600 MB: botocore's pin (python-dateutil < 3) conflicts with ours, and Ray is large.
$(VENV)/fleet/.done: tests/system/with_fleet/requirements.txt $(VENV)/.dev
	$(call layered,fleet,Ray and servers of S3 and GCS for the tests of fleet)

# 340 MB. lerobot requires torch < 2.11, so it is installed without its requirements.
$(VENV)/lerobot/.done: tests/system/with_lerobot/requirements.txt $(VENV)/.dev
	$(call layered,lerobot,lerobot for the test of its policy)

# 110 MB, so that the other tests run without the extra.
$(VENV)/onnx/.done: tests/system/with_onnx/requirements.txt $(VENV)/.dev
	$(call layered,onnx,onnxruntime for the tests of exported networks)

test: $(VENV)/.dev $(VENV)/.loops ## all tests that need only Python
	@echo "test: all tests that need only Python, $(WORKERS) at a time"
	@$(BIN)/python -m pytest --ignore tests/system -n $(WORKERS) --dist worksteal --durations 20

setup-system: $(VENV)/.dev $(VENV)/kserve/.done $(VENV)/fleet/.done $(VENV)/onnx/.done $(VENV)/lerobot/.done
	@sh tests/system/install.sh

test-system: setup-system ## tests that need Debian's chromium, nginx and prometheus, kserve, lerobot, onnxruntime, Ray or TorchCFM (installs them; needs root)
	@echo "test-system: all tests with real processes and pages, $(SYSTEM_WORKERS) at a time"
	@$(BIN)/python -m pytest tests/system -n $(SYSTEM_WORKERS) --dist loadfile --no-loadscope-reorder --durations 20

lock: $(VENV)/.dev ## write the hashes of the image's packages, after changing constraints.txt
	@$(PIP) uv
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m deploy.locks.generate

bench: $(VENV)/.dev ## compare the speed with other software
	@$(BIN)/python -m studies bench

bench-peers: $(VENV)/peers/.done ## install LitServe and Triton for the benchmarks

bench-quick: $(VENV)/.dev models ## compare the service with others in four minutes and print a table
	@$(BIN)/python -m studies.serving --rounds 1 --seconds 3

soak: $(VENV)/.dev ## ten minutes of mixed load against a real service
	@$(BIN)/python -m studies.soak

clean: ## remove the virtual environment and caches (models are kept)
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis
