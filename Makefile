# pgcache_fence: built with PGXS. "make help" lists the targets.

EXTENSION = pgcache_fence
# Not in the project's folder: there Python would take it for the package pgcache_fence of clients/python.
MODULE_big = build/pgcache_fence
SHLIB_PREREQS = build
DATA = pgcache_fence--1.0.sql

PG_CONFIG ?= pg_config

OBJS := $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))
LIBRARY = $(patsubst %,src/redis/%.lua,fence arming rights buckets marks fills listings hot effects)
LIBRARY_HEADER = src/redis/fence_lua.h
ALL_HEADERS = $(filter-out $(LIBRARY_HEADER),$(wildcard src/*.h src/*/*.h))

# The tests build with WERROR=-Werror. Who only installs may have a compiler that warns of more than ours.
# The server's headers come as system headers, so that -Wextra speaks of our code only: PostgreSQL itself is built
# without it, and its inline functions have unused parameters.
PG_CFLAGS = -Wall -Wextra $(WERROR)
PG_CPPFLAGS = -Isrc -isystem $(shell $(PG_CONFIG) --includedir-server) \
	$(shell pkg-config --cflags-only-I hiredis 2>/dev/null)
# Points at which tests stop a backend; not in a release.
ifdef TEST_HOOKS
PG_CPPFLAGS += -DFENCE_TEST_HOOKS
else
OBJS := $(filter-out src/base/test_hooks.o,$(OBJS))
endif
SHLIB_LINK = $(shell pkg-config --libs hiredis 2>/dev/null || echo -lhiredis)
# TLS needs hiredis' own part for it (since 1.0) and OpenSSL; without them a rediss:// URL is refused.
ifeq ($(shell pkg-config --exists hiredis_ssl openssl 2>/dev/null && echo yes),yes)
PG_CPPFLAGS += -DFENCE_TLS
SHLIB_LINK += $(shell pkg-config --libs hiredis_ssl openssl)
endif

# The functions that PostgreSQL looks up by name are exported, and no other. So no name of ours can be taken for one of another
# library, and our files call one another directly. A write runs through small functions in twenty files; the optimizer of the linker
# saves a third of the instructions in them.
EXPORTS = src/exports.map
ifndef LTO
COMPILER = $(if $(filter default,$(origin CC)),$$($(PG_CONFIG) --cc),$(CC))
LTO := $(shell echo 'int f(void); int f(void) { return 0; }' | \
	$(COMPILER) -flto=auto -fPIC -shared -x c -o /dev/null - 2>/dev/null && echo -flto=auto)
endif
PG_CFLAGS += $(LTO)
SHLIB_LINK += -Wl,--version-script=$(EXPORTS)

# Bitcode lets the JIT inline functions into expressions. Triggers are never inlined, so building needs no clang.
override with_llvm = no

EXTRA_CLEAN = $(LIBRARY_HEADER) $(EXPORTS) build build-deb results output_iso tmp_check tmp_check_iso regression.diffs regression.out

# The tests need a server with the settings of test/regress.conf and a Redis: test/run.sh sets both up.
REGRESS := $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
ISOLATION := $(patsubst test/isolation/specs/%.spec,%,$(sort $(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation
TAP_TESTS := 1
PROVE_TESTS = test/t/*/*.pl

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
TAP_MODULES = $(dir $(PGXS))../../src/test/perl

# After PGXS, which sets it.
override PROVE_FLAGS += -I test/lib

# A header is seldom changed and a build takes seconds: every object depends on all of them.
$(OBJS): $(ALL_HEADERS) Makefile

src/redis/library.o: $(LIBRARY_HEADER)

$(shlib): $(EXPORTS)

build:
	mkdir -p $@

# PGXS would keep the folder in the name of what it installs.
install-lib-shared uninstall-lib: private shlib = $(EXTENSION)$(DLSUFFIX)

$(EXPORTS): $(OBJS:.o=.c) Makefile
	{ echo '{ global: Pg_magic_func; _PG_init; pg_finfo_*;'; \
	  cat $(OBJS:.o=.c) | sed -nE 's/^(PG_FUNCTION_INFO_V1\(|PGDLLEXPORT void )(\w+).*/	\2;/p'; \
	  echo 'local: *; };'; } > $@.new
	mv $@.new $@

# The function library as a C string: fence_lua[] with a NUL at its end, FENCE_LUA_LENGTH bytes without it.
$(LIBRARY_HEADER): $(LIBRARY) Makefile
	{ echo '/* Made from $(LIBRARY) by the Makefile. */'; \
	  echo 'static const char fence_lua[] = {'; \
	  cat $(LIBRARY) | od -An -v -tu1 | sed -e 's/^ */	/' -e 's/  */, /g' -e 's/$$/,/'; \
	  echo '	0'; \
	  echo '};'; \
	  echo '#define FENCE_LUA_LENGTH (sizeof(fence_lua) - 1)'; } > $@.new
	mv $@.new $@

# Each tool is used if it is there; test/run.sh installs them all.
SHELL_SCRIPTS = $(shell find . -path ./build-deb -prune -o -name '*.sh' -print) debian/tests/smoke
PYTHON_FILES = $(shell find test -name node_modules -prune -o -name '*.py' -print)
PERL_FILES = $(shell find test -name node_modules -prune -o -name '*.p[lm]' -print)
CHECKED = checked() { command -v "$$1" >/dev/null || { echo "lint: no $$1, $$2 not checked"; return 1; }; }

lint:
	@PYTHONDONTWRITEBYTECODE=1 python3 test/folders.py
	@$(CHECKED); ! checked luac5.1 'syntax of the Lua library' || cat $(LIBRARY) | luac5.1 -p -
	@$(CHECKED); ! checked luacheck 'Lua library' || \
		cat $(LIBRARY) | luacheck --quiet --no-color --std lua51 --read-globals redis cjson cmsgpack bit \
			--max-line-length 120 -
	@$(CHECKED); ! checked shellcheck scripts || \
		shellcheck -s sh -x -S warning -e SC2034,SC2154 $(SHELL_SCRIPTS)
	@$(CHECKED); ! checked pyflakes3 'Python files' || pyflakes3 $(PYTHON_FILES)
	@if perl -I test/lib -I $(TAP_MODULES) -e 'use IPC::Run; use PostgreSQL::Test::Utils' 2>/dev/null; then \
	     for file in $(PERL_FILES); do \
	         perl -I test/lib -I $(TAP_MODULES) -wc $$file 2>&1 | grep -v ' syntax OK$$' >&2 && exit 1; done; true; \
	 else echo 'lint: no IPC::Run or no PostgreSQL::Test, Perl files not checked'; fi
	@# PostgreSQL names a TAP test's logs and data after its file, without the folder
	@twice=$$(ls test/t/*/ | grep '[.]pl$$' | sort | uniq -d); [ -z "$$twice" ] || { echo "test/t: two files are named $$twice"; exit 1; }
	@! ls test/t/*.pl 2>/dev/null || { echo 'test/t: a test must stand in one of the folders'; exit 1; }
	@if /usr/bin/python3 -c 'import editorconfig' 2>/dev/null; then PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 test/style.py; \
	 else echo 'lint: no python3-editorconfig, style not checked'; fi

# The analyser of gcc follows paths through each file: leaks, double frees, NULL. Any warning is an error. The objects go
# nowhere.
analyze: $(LIBRARY_HEADER)
	@for file in $(OBJS:.o=.c); do \
	     echo "analyze $$file"; \
	     gcc -O1 -fanalyzer -Werror $(PG_CPPFLAGS) -I$$($(PG_CONFIG) --includedir) -D_GNU_SOURCE -c -o /dev/null $$file \
	         || exit 1; done

# In a copy, because dpkg writes beside the source, and debian/control is made anew for the PostgreSQL that is here.
deb:
	rm -rf build-deb
	mkdir -p build-deb/pgcache-fence
	tar --exclude=./.git --exclude=./build-deb --exclude='*.o' --exclude='*.so' --exclude=fence_lua.h --exclude=exports.map --exclude=./tmp_check \
		--exclude=__pycache__ -cf - . | tar -C build-deb/pgcache-fence -xf -
	cd build-deb/pgcache-fence && pg_buildext updatecontrol && \
		env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS dpkg-buildpackage -us -uc
	@ls build-deb/*.deb

help:
	@echo 'make                 build (PG_CONFIG=/path/to/pg_config for another server)'
	@echo 'make TEST_HOOKS=1    the same with points at which tests can stop a backend; after "make clean"'
	@echo 'make LTO=            the same without the optimizer of the linker; after "make clean"'
	@echo 'make install         install into that server, or below DESTDIR'
	@echo 'make deb             build Debian packages of it, in build-deb/'
	@echo 'make lint            check style and syntax of C, Lua, shell, Python and Perl, and the order of the folders in src/'
	@echo 'make analyze         gcc -fanalyzer over the C files; a minute'
	@echo 'make clean           remove what was built'
	@echo 'sh test/run.sh       all tests, on private servers; installs what it needs (--all: before a release)'
	@echo 'sh test/coverage.sh  which lines of the C files the tests reach'
	@echo 'sh test/deb.sh       the Debian package, built and used in clean chroots'
	@echo 'sh test/readme.sh    README.md, pasted into a fresh Debian'
	@echo 'sh test/demo.sh      the main job, live'

.PHONY: lint analyze deb help
