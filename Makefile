# Names for `cargo xtask` commands. Each installs what it needs, says what it is doing, and is quick when nothing is to do.

CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/espalier
export CARGO_TARGET_DIR ?= $(CACHE)/target

# By features of the whole workspace, so that what it shares with the engine is compiled once.
XTASK := cargo build --quiet --workspace --bin xtask && "$(CARGO_TARGET_DIR)/debug/xtask"

.PHONY: demo demo-swe check test bench lint build test-live test-graders setup clean

demo demo-swe check test bench lint build test-live test-graders setup clean: toolchain
	@$(XTASK) $@

# NAMES="idle textcraft": these plugins alone. ARGUMENTS="textcraft --help": a set of tasks of your own.
.PHONY: plugins tasks
plugins: toolchain
	@$(XTASK) plugins $(NAMES)
tasks: toolchain
	@$(XTASK) tasks $(ARGUMENTS)

# What `cargo xtask` itself needs; all else it looks after. Checkouts share the cache, and cargo tells their crates apart by
# the times of files alone: what another checkout built must not pass for this one's.
.PHONY: toolchain
toolchain:
	@mkdir -p "$(CARGO_TARGET_DIR)"; \
	if [ "$$(cat "$(CARGO_TARGET_DIR)/checkout" 2>/dev/null)" != "$(CURDIR)" ]; then \
	  find engine xtask tests benches sandbox-agent plugins/rust wit -type f -exec touch -c {} + && \
	  echo "$(CURDIR)" > "$(CARGO_TARGET_DIR)/checkout"; fi
	@command -v cargo >/dev/null || { \
	  echo "cargo is missing. Install rustup (Debian: apt-get install -y rustup, or rustup's own installer), then run: rustup toolchain install 1.95.0"; \
	  exit 1; }
	@command -v cc >/dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then \
	    echo "installing a C compiler"; apt-get update -qq && apt-get install -y -qq --no-install-recommends build-essential >/dev/null; \
	  else echo "a C compiler is missing. Run: sudo apt-get install -y --no-install-recommends build-essential"; exit 1; fi; }
