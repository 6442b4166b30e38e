# pgcache_fence: built with PGXS. "make help" lists the targets.

EXTENSION = pgcache_fence
MODULE_big = pgcache_fence
DATA = pgcache_fence--1.0.sql

PG_CONFIG ?= pg_config

OBJS := $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/redis/*.c)))
LIBRARY_HEADER = src/redis/fence_lua.h
ALL_HEADERS = $(filter-out $(LIBRARY_HEADER),$(wildcard src/*.h src/redis/*.h))

# Warnings are errors; "make WERROR=" for a compiler that warns of more than ours.
# The server's headers come as system headers, so that -Wextra speaks of our code only: PostgreSQL itself is built
# without it, and its inline functions have unused parameters.
WERROR = -Werror
PG_CFLAGS = -Wall -Wextra $(WERROR)
PG_CPPFLAGS = -Isrc -isystem $(shell $(PG_CONFIG) --includedir-server) \
	$(shell pkg-config --cflags-only-I hiredis 2>/dev/null)
# Points at which tests stop a backend; not in a release.
ifdef TEST_HOOKS
PG_CPPFLAGS += -DFENCE_TEST_HOOKS
else
OBJS := $(filter-out src/test_hooks.o,$(OBJS))
endif
SHLIB_LINK = $(shell pkg-config --libs hiredis 2>/dev/null || echo -lhiredis)
# TLS needs hiredis' own part for it (since 1.0) and OpenSSL; without them a rediss:// URL is refused.
ifeq ($(shell pkg-config --exists hiredis_ssl openssl 2>/dev/null && echo yes),yes)
PG_CPPFLAGS += -DFENCE_TLS
SHLIB_LINK += $(shell pkg-config --libs hiredis_ssl openssl)
endif

# Bitcode lets the JIT inline functions into expressions. Triggers are never inlined, so building needs no clang.
override with_llvm = no

EXTRA_CLEAN = $(LIBRARY_HEADER) results output_iso tmp_check tmp_check_iso regression.diffs regression.out

# The tests need a server with the settings of test/regress.conf and a Redis: test/run.sh sets both up.
REGRESS := $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
ISOLATION := $(patsubst test/isolation/specs/%.spec,%,$(sort $(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation
TAP_TESTS := $(if $(wildcard test/t/*.pl),1)
PROVE_TESTS = test/t/*.pl

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# After PGXS, which sets it.
override PROVE_FLAGS += -I test/lib

# A header is seldom changed and a build takes seconds: every object depends on all of them.
$(OBJS): $(ALL_HEADERS) Makefile

src/redis/library.o: $(LIBRARY_HEADER)

# The function library as a C string: fence_lua[] with a NUL at its end, FENCE_LUA_LENGTH bytes without it.
$(LIBRARY_HEADER): src/redis/fence.lua Makefile
	{ echo '/* Made from fence.lua by the Makefile. */'; \
	  echo 'static const char fence_lua[] = {'; \
	  od -An -v -tu1 $< | sed -e 's/^ */	/' -e 's/  */, /g' -e 's/$$/,/'; \
	  echo '	0'; \
	  echo '};'; \
	  echo '#define FENCE_LUA_LENGTH (sizeof(fence_lua) - 1)'; } > $@.new
	mv $@.new $@

# Each tool is used if it is there; test/run.sh installs both.
lint:
	@if command -v luac5.1 >/dev/null; then luac5.1 -p src/redis/fence.lua; \
	 else echo 'lint: no luac5.1, syntax of fence.lua not checked'; fi
	@if command -v luacheck >/dev/null; then \
	     luacheck --quiet --no-color --std lua51 --read-globals redis cjson bit --max-line-length 120 src/redis/fence.lua; \
	 else echo 'lint: no luacheck, fence.lua not checked'; fi

help:
	@echo 'make                 build (PG_CONFIG=/path/to/pg_config for another server)'
	@echo 'make TEST_HOOKS=1    the same with points at which tests can stop a backend; after "make clean"'
	@echo 'make install         install into that server, or below DESTDIR'
	@echo 'make lint            check the Redis function library'
	@echo 'make clean           remove what was built'
	@echo 'sh test/run.sh       all tests, on private servers; installs what it needs'
	@echo 'sh test/demo.sh      the main job, live'

.PHONY: lint help
