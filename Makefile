# Two commands: `make demo` runs the main job, `make test` checks everything. `make setup` only installs.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(if $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null | grep True),$(name))))
UV ?= uv
BIN := .venv/bin
# What poise itself needs, and what developers need besides: the demo waits for the first one only.
RUNTIME := .venv/.runtime
DEVELOP := .venv/.develop
LOWEST := .venv-lowest

.PHONY: setup demo demo-pretrained docs dist check test test-lowest test-install lint format lock api clean

setup: $(DEVELOP)

$(RUNTIME) $(DEVELOP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "poise needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11"; exit 2; }
	@test -d .venv || $(PYTHON) -m venv .venv || { echo "needs python3-venv (Debian: apt-get install python3-venv)"; exit 2; }
	@echo "Installing into .venv. PyTorch is large: the first time this takes one to ten minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '$(if $(filter $(DEVELOP),$@),.[dev],.)'
	@echo "Ready: $(BIN)/poise"
	@touch $(RUNTIME) $@

# One thread: the digits' network is so small that a second one only gets in the way.
demo: export OMP_NUM_THREADS = 1
demo: $(RUNTIME)
	@for run in fixed-tfh online-tfh fixed-tfs online-tfs finetune-tfs replay-tfs joint-tfs; do \
	  folder=runs/demo/$$run; word=$${run%-*}; \
	  case $$word in fixed|online) what="lucir policy=$$word";; *) what=$$word;; esac; \
	  if [ -e $$folder/recipe.json ]; then $(BIN)/poise resume $$folder || exit $$?; \
	  else $(BIN)/poise run digits/$$what setting=$${run#*-} --out $$folder > /dev/null || exit $$?; fi; \
	done
	@echo; $(BIN)/poise report $(addprefix runs/demo/,fixed-tfh online-tfh fixed-tfs online-tfs finetune-tfs replay-tfs joint-tfs) --out runs/demo/report --cam > runs/demo/report.txt
	@sed '/^$$/q' runs/demo/report.txt
	@echo "Each row is one run: a method learned ten digits, a few at a time, and was tested after every step on all digits so far."
	@echo "  average      the mean of these tests in percent; last: the last of them; forgetting: points that older digits lost"
	@echo "  tfh / tfs    five digits first, then one at a time / two digits at a time"
	@echo "  fixed        the method's own settings; online: poise tried several settings before each step and took the best"
	@echo "  finetune     nothing is done against forgetting; replay: a few old images are trained on again; joint: all images are kept"
	@echo "One run says little, and processors round differently: your figures can differ from the tutorial's by several points."
	@echo
	@echo "Look at it:       open runs/demo/report/index.html in a browser (all figures and every run)"
	@echo "Your own images:  $(BIN)/poise learn pets.safetensors FOLDER, with one folder of images for each class in FOLDER"
	@echo "Then read:        docs/tutorial.md"

# A frozen network that was trained on ImageNet, beside a small one that starts from nothing: three phases of four classes.
demo-pretrained: FOLDER = runs/demo-pretrained
demo-pretrained: $(RUNTIME)
	@$(BIN)/python benchmarks/pretrained/subset.py $(FOLDER)/images
	@for name in frozen scratch; do \
	  if [ -e $(FOLDER)/$$name/recipe.json ]; then $(BIN)/poise resume $(FOLDER)/$$name || exit $$?; \
	  else $(BIN)/poise run benchmarks/pretrained/$$name.toml --out $(FOLDER)/$$name > /dev/null || exit $$?; fi; \
	done
	@echo; $(BIN)/poise report $(FOLDER)/frozen $(FOLDER)/scratch --out $(FOLDER)/report
	@echo; echo "The first network was trained on ImageNet-1k, which the classes of Tiny-ImageNet are taken from: it has seen"
	@echo "such classes before, so the first row is no result of class-incremental learning from scratch."

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# What must be green before a change is proposed.
check: lint test

# The oldest libraries that pyproject.toml allows, really installed. PyTorch is the one of constraints.txt.
test-lowest:
	@command -v $(UV) > /dev/null || { echo "make test-lowest needs uv: pip install uv, or make test-lowest UV=/path/to/uv"; exit 2; }
	$(UV) venv --quiet --clear --python $(PYTHON) $(LOWEST)
	grep -E '^(torch|pytest|pytest-xdist|hypothesis)==' constraints.txt > $(LOWEST)/constraints.txt
	$(UV) pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -c $(LOWEST)/constraints.txt -e '.[tensorboard]' pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 -W default tests/cli tests/test_store.py tests/data tests/runs/test_recipe.py tests/report/test_page.py tests/report/test_tables.py

# The wheel with all its libraries, in a new environment for each supported Python that is here. Downloads gigabytes.
test-install: setup
	POISE_INSTALL=1 $(BIN)/python -m pytest -q -rs tests/test_package.py -k libraries

# Source archive and wheel, in dist/.
dist: setup
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# The versions that the pins of constraints.txt lead to, for `uv sync`; addresses are those of PyPI, whatever this machine uses.
lock:
	@command -v $(UV) > /dev/null || { echo "make lock needs uv: pip install uv, or make lock UV=/path/to/uv"; exit 2; }
	UV_NO_CONFIG=1 $(UV) lock --default-index https://pypi.org/simple $(foreach pin,$(shell grep == constraints.txt),--upgrade-package $(pin))

# The pages as a site, in site/. A link that leads nowhere is an error.
docs: setup
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs site
	@echo "Open site/index.html in a browser"

# docs/api.md from the docstrings, and the table of keys on docs/recipes.md.
api: $(RUNTIME)
	$(BIN)/python tools/api_page.py docs/api.md
	$(BIN)/python tools/keys_table.py docs/recipes.md

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv $(LOWEST) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
