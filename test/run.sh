#!/bin/sh
# run.sh - runs all tests on private servers. Installs what it needs (apt), changes nothing else on the machine. Modules of npm
# for the clients go into the temporary directory.
#
# The last line says "N passed, N failed". It counts: the build and the lint (one each, if they fail), the counts of the unit
# tests, each test of pg_regress and pg_isolation_regress, a crash of the server that these two share, each assertion of the TAP
# tests and each TAP file that ends with an error, each watch of the fuzzer, each world of the comparison, each run of the history
# checker, each configuration and mutation of the model, each test of the clients and of the Python and Node.js libraries, the
# demo with and without sabotage, and all of this for tests on another PostgreSQL and Redis (test/matrix.sh).

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/run.sh [--all] [--seed N] [--only LEVEL]... [NAME...]

	  --all          also long tests, for a release: every fault, the long configurations of the model, longer runs
	  --seed N       the seed of all random choices (default: made from the sources, so that the same sources repeat them; with --all:
	                 drawn; printed)
	  --only LEVEL   unit, regress, isolation, tap, fuzz, compare, history, model, clients, python, node, demo or matrix; may be repeated
	  NAME           only tests of that name, which may be a shell pattern ('key*') and may begin with the file's folder
	                 ('write/*' are the TAP tests in test/t/write)

	  PROVE_JOBS     number of TAP files that run at the same time (4; they mostly wait)
	  FENCE_CAPTURE  auto or triggers: pgcache_fence.capture in all servers. Without it servers have auto, and regress and isolation
	                 run with triggers too, tap also with --all
	  FENCE_BUCKETS  pgcache_fence.watch_buckets in the TAP tests whose subject it is not (0, as in regress and isolation). With others
	                 those fail that count on it that the first read of a key is cached
	TEXT
}

all=
seed=
levels=
patterns=

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--all) all=--all ;;
		--seed)
			case ${2:-} in '' | *[!0-9]*) usage >&2; exit 2 ;; esac
			seed=$2
			shift
			;;
		--only)
			case ${2:-} in
			unit | regress | isolation | tap | fuzz | compare | history | model | clients | python | node | demo | matrix) levels="$levels $2" ;;
			*) usage >&2; exit 2 ;;
			esac
			shift
			;;
		--help | -h) usage; exit 0 ;;
		-*) usage >&2; exit 2 ;;
		*) patterns="$patterns $1" ;;
		esac
		shift
	done
}

started=$(date +%s)
level() { say "--- $1 (after $((($(date +%s) - started) / 60)) min)"; }

wanted() { case " ${levels:-unit regress isolation tap fuzz compare history model clients python node demo matrix} " in *" $1 "*) return 0 ;; esac; return 1; }

# Another combination of versions, tested in a chroot beside all other tests. It is started outside, because an unprivileged user
# cannot make a chroot. Its results are counted at the end.
other_versions=trixie-redis
matrix_seconds=1500

# Prints the combinations that the arguments name; without names that one.
matrix_chosen() {
	[ -n "$patterns" ] || { echo "$other_versions"; return; }
	for name in $(sh "$top/test/matrix.sh" --list); do
		if fits "$name" "$patterns"; then echo "$name"; fi
	done
}

begin_matrix() {
	set --
	for name in $(matrix_chosen); do set -- "$@" --only "$name"; done
	[ $# -gt 0 ] || return 0
	say 'matrix: begins beside the other tests'
	# shellcheck disable=SC2016
	setsid timeout --kill-after=30 $matrix_seconds sh -c 'sh "$@"; echo $? >"$0"' "$outside/matrix.status" \
		"$top/test/matrix.sh" --short "$@" >"$outside/matrix.log" 2>&1 &
	beside=$!
}

# Waits for the matrix. A mirror that does not answer must not hold up the results of all other tests, so it has its time.
end_matrix() {
	[ -e "$base/matrix.log" ] || return 0
	level matrix
	while [ ! -s "$base/matrix.status" ] && [ $(($(date +%s) - started)) -lt $((matrix_seconds + 60)) ]; do sleep 0.5; done
	cat "$base/matrix.log"
	status=$(cat "$base/matrix.status" 2>/dev/null)
	[ -n "$status" ] || say "matrix: did not end within $matrix_seconds s"
	if [ "$status" = 77 ]; then
		say 'matrix: skipped, see above for why; only the versions of this machine are tested'
		return
	fi
	good=$(sed -n 's/^[|].* \([0-9]*\) passed, .*/\1/p' "$base/matrix.log" | awk '{ n += $1 } END { print n + 0 }')
	bad=$(sed -n 's/^[|].* passed, \([0-9]*\) failed.*/\1/p' "$base/matrix.log" | awk '{ n += $1 } END { print n + 0 }')
	[ "$status" = 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good))
	failed=$((failed + bad))
}

parse_arguments "$@"
case ${FENCE_CAPTURE:-} in '' | auto | triggers) ;; *) die "FENCE_CAPTURE is auto or triggers, not $FENCE_CAPTURE" ;; esac
if [ -z "$base" ]; then
	begin_outside
	pulse tell_newest "$outside"
	clients=
	if wanted clients; then clients="chromium|chromium-headless-shell $(node_packages) python3-sqlalchemy python3-django"; fi
	if wanted python; then clients="$clients $python_packages"; fi
	if wanted node || wanted history || wanted unit; then clients="$clients $(node_packages)"; fi
	# shellcheck disable=SC2086
	install_packages $test_packages $clients
	if wanted tap; then install_if_any "postgresql-$(postgres_here)-cron" 'nothing is tested beside pg_cron'; fi
	stop_pulse
	if wanted matrix; then begin_matrix; fi
	pulse tell_newest "$outside"
	# if one of these fails, so does the level
	if wanted clients; then install_modules test/clients modules; fi
	if wanted node || wanted history; then install_modules clients/node node; fi
	if wanted unit; then install_modules test/lint lint; fi
	stop_pulse
	run_inside run.sh "$@"
	exit $?
fi

passed=0
failed=0
skipped=0
mode=

# Lists all failures again at the end of the output, for readers who see only that. The details are above.
recall_failures() {
	for file in "$base"/*.log; do
		case $file in */postgres.log | */redis.log) continue ;; esac
		grep -E '^(    )*not (ok|in) |\.\.\. FAILED |^#   Failed test |[(]Wstat: [1-9]|^[|].* [1-9][0-9]* failed' "$file" |
			sed "s/^/$(basename "$file" .log): /" | head -n 40
	done
}

finish() {
	end_matrix
	stop_pulse
	say
	if [ $failed -gt 0 ]; then
		say '--- what failed'
		recall_failures
		say
	fi
	[ "$skipped" -eq 0 ] || say "$skipped TAP files skipped themselves; see above for why"
	say "$passed passed, $failed failed"
	[ $failed -eq 0 ]
	exit $?
}

# chosen DIRECTORY SUFFIX: prints the names of the tests there that the arguments name.
chosen() { names_of "$patterns" "$2" "$1"/*"$2"; }

# TAP files that take a minute or more. prove starts files in the given order. A long file that started last would run alone.
long_tap='bulk_faults statements access hostile_server sentinel sysbench bulk bulk_together redis_gone cluster patrol memory
	real_schema effects shapes'

tap_files() {
	for name in $long_tap; do echo test/t/*/"$name".pl; done
	ls test/t/*/*.pl
}

# shellcheck disable=SC2046
tap_chosen() { names_of "$patterns" .pl $(tap_files | awk '!seen[$0]++'); }

history_chosen() {
	for name in $(chosen test/history .py); do
		case $name in test_* | ci | caught) printf '%s ' "$name" ;; esac
	done
}

fuzz_chosen() {
	case " $(chosen test/fuzz .py)" in *' fuzz '*) echo fuzz ;; esac
}

compare_chosen() {
	case " $(chosen test/compare .py)" in *' compare '*) echo compare ;; esac
}

clients_chosen() {
	for name in $(chosen test/clients .py); do
		case $name in test_*) printf '%s ' "$name" ;; esac
	done
}

python_chosen() {
	for name in $(chosen clients/python/tests .py); do
		case $name in test_*) printf '%s ' "clients/python/tests/$name.py" ;; esac
	done
}

model_chosen() {
	set -f
	# shellcheck disable=SC2086
	sh test/model/run.sh --list ${patterns:-$all}
	set +f
}

# Runs the tests of single source files, without a server. Each program ends with a line "N passed, N failed".
run_unit() {
	level unit
	for name in $1; do
		log=$base/unit-$name.log
		LINT_MODULES=$base/lint/node_modules sh "test/unit/$name.sh" >"$log" 2>&1
		status=$?
		cat "$log"
		good=$(sed -n 's/^\([0-9]*\) passed, [0-9]* failed$/\1/p' "$log")
		bad=$(sed -n 's/^[0-9]* passed, \([0-9]*\) failed$/\1/p' "$log")
		[ $status -eq 0 ] || [ "${bad:-0}" -gt 0 ] || bad=1
		passed=$((passed + ${good:-0}))
		failed=$((failed + ${bad:-0}))
	done
}

# count_regress LOG STATUS: counts the results of pg_regress and pg_isolation_regress ("test x ... ok"; since 16 "ok 1 - x").
count_regress() {
	good=$(grep -cE '^(test .*|     .*)\.\.\. ok |^ok [0-9]+ ' "$1")
	bad=$(grep -cE '^(test .*|     .*)\.\.\. FAILED |^not ok [0-9]+ ' "$1")
	[ "$2" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good))
	failed=$((failed + bad))
}

# run_regress LEVEL NAMES: runs one of the two regression programs, through the Makefile.
run_regress() {
	level "$1${mode:+, $mode}"
	log=$base/$1${mode:+-$mode}.log
	case $1 in
	regress) set -- "$1" "REGRESS=$2" ISOLATION= TAP_TESTS= regression.diffs ;;
	isolation) set -- "$1" REGRESS= "ISOLATION=$2" TAP_TESTS= output_iso/regression.diffs ;;
	esac
	make -s installcheck "$2" "$3" "$4" >"$log" 2>&1
	status=$?
	grep -E '^(test |parallel group|     |(not )?ok |# )|All .* tests passed|failed|ERROR|FATAL' "$log"
	[ ! -s "$5" ] || cat "$5"
	count_regress "$log" $status
}

# Checks the servers that regress and isolation share, because a crash of a backend does not always fail the test that caused it.
check_crash() {
	if grep -E 'was terminated by signal|PANIC:|TRAP:|AddressSanitizer|runtime error' "$base/postgres.log"; then
		say 'the server crashed'
		failed=$((failed + 1))
	fi
	if ! "$bindir/pg_isready" -q; then
		say 'the server is not running any more; the end of its log:'
		tail -n 20 "$base/postgres.log"
		failed=$((failed + 1))
	fi
}

# run_shared_servers REGRESS ISOLATION: runs the tests of both levels on servers of their own.
run_shared_servers() {
	if start_redis && start_postgres test/regress.conf; then
		[ -z "$1" ] || run_regress regress "$1"
		[ -z "$2" ] || run_regress isolation "$2"
		check_crash
	else
		say 'the servers did not start'
		failed=$((failed + 1))
	fi
	stop_servers
	rm -rf "$base/data" "$base/postgres.log"
}

# with_triggers COMMAND...: runs the command with capture = 'triggers', unless FENCE_CAPTURE already sets the value for all servers.
with_triggers() {
	[ -z "${FENCE_CAPTURE:-}" ] || return 0
	mode=triggers
	use_capture triggers
	"$@"
	use_capture ''
	mode=
}

# The limit for all TAP tests. Their waits have deadlines; this is for a wait without one.
tap_seconds=3000

run_tap() {
	level "tap${mode:+, $mode}"
	files=
	for name in $1; do files="$files $(echo test/t/*/"$name".pl)"; done
	log=$base/tap${mode:+-$mode}.log
	{
		TEMP_CONFIG=$base/place.conf timeout $tap_seconds make -s installcheck REGRESS= ISOLATION= "PROVE_TESTS=$files" \
			"PROVE_FLAGS=--timer -j${PROVE_JOBS:-4}" 2>&1
		echo $? >"$log.status"
	} | tee "$log" | grep --line-buffered -vE '^(\+\+\+|make)'
	status=$(cat "$log.status")
	total=$(sed -n 's/^Files=[0-9]*, Tests=\([0-9]*\),.*/\1/p' "$log")
	# The summary has a line for each file with a failure. A file that dies counts as failed even if no assertion has failed.
	bad=$(sed -n 's/^test\/.*(Wstat: \([0-9]*\).* Tests: [0-9]* Failed: \([0-9]*\))$/\1 \2/p' "$log" |
		awk '{ n += $2; files += ($2 == 0 && $1 != 0) } END { print n + 0, files + 0 }')
	files_bad=${bad#* }
	bad=${bad% *}
	passed=$((passed + ${total:-0} - bad))
	bad=$((bad + files_bad))
	[ $status -eq 0 ] || [ $bad -gt 0 ] || bad=1
	failed=$((failed + bad))
	skipped=$((skipped + $(grep -c '\. skipped: ' "$log")))
	[ $bad -eq 0 ] || show_tap_logs "$log" "$tap"
}

# run_tap_program NAME COMMAND...: runs a program that prints TAP, with the environment for our Python programs; counts its lines.
run_tap_program() {
	log=$base/$1.log
	shift
	{
		FENCE_PLACE=$base/place.conf CLIENTS_MODULES=$base/modules/node_modules NODE_PATH=$base/node/node_modules \
			PYTHONDONTWRITEBYTECODE=1 "$@" 2>&1
		echo $? >"$log.status"
	} | tee "$log"
	good=$(grep -c '^ok ' "$log")
	bad=$(grep -c '^not ok ' "$log")
	[ "$(cat "$log.status")" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good))
	failed=$((failed + bad))
}

# together COMMAND...: runs these commands at the same time, each in a subshell, and adds what they count. Empty ones count nothing.
# They mostly wait, and each has servers of its own.
together() {
	jobs=
	part=0
	for command in "$@"; do
		part=$((part + 1))
		echo '0 1' >"$base/together.$part"
		(
			passed=0
			failed=0
			eval "$command"
			echo "$passed $failed" >"$base/together.$part"
		) &
		jobs="$jobs $!"
	done
	for job in $jobs; do wait "$job"; done
	while [ $part -gt 0 ]; do
		read -r good bad <"$base/together.$part"
		passed=$((passed + good))
		failed=$((failed + bad))
		part=$((part - 1))
	done
}

# run_history_programs NAME...: runs these programs one after the other.
run_history_programs() {
	for name in "$@"; do
		case $name in
		test_checker | caught) run_tap_program "history-$name" /usr/bin/python3 "test/history/$name.py" ;;
		*) run_tap_program "history-$name" /usr/bin/python3 "test/history/$name.py" --seed "$seed" $all ;;
		esac
	done
}

# Tests the history checker and the faults that it injects, on a build with test hooks, which can stop a backend.
run_history() {
	level history
	make -s clean
	if ! build TEST_HOOKS=1; then
		failed=$((failed + 1))
		return
	fi
	here=
	beside=
	for name in $1; do
		case $name in
		test_* | caught) beside="$beside $name" ;;
		*) here="$here $name" ;;
		esac
	done
	together "run_history_programs $here" "run_history_programs $beside"
}

# Runs the fuzzer for some seconds; test/fuzz.sh runs it for longer.
run_fuzz() {
	level fuzz
	run_tap_program fuzz /usr/bin/python3 test/fuzz/fuzz.py --seed "$seed" --seconds "$([ -n "$all" ] && echo 300 || echo 60)"
}

# Compares capture = 'auto' with 'triggers' on random statements and tables; test/compare.sh does it for longer.
run_compare() {
	level compare
	run_tap_program compare /usr/bin/python3 test/compare/compare.py --seed "$seed" --seconds "$([ -n "$all" ] && echo 600 || echo 60)"
}

# Checks the model of the protocol. It needs no servers, but two processors for some minutes.
run_model() {
	level model
	# shellcheck disable=SC2086
	run_tap_program model sh test/model/run.sh $1
}

# Tests programs in other languages that read through fences, and a browser.
run_clients() {
	level clients
	for name in $1; do run_tap_program "clients-$name" /usr/bin/python3 "test/clients/$name.py"; done
}

# Tests the Python library with pytest: all files in one run, because they share servers.
run_python() {
	level python
	log=$base/python.log
	{
		# shellcheck disable=SC2086
		FENCE_PLACE=$base/place.conf PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m pytest -p no:cacheprovider --tb=short -v $1 2>&1
		echo $? >"$log.status"
	} | tee "$log"
	good=$(grep -cE ' PASSED ' "$log")
	bad=$(grep -cE '^(FAILED|ERROR) ' "$log")
	[ "$(cat "$log.status")" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good))
	failed=$((failed + bad))
}

# Tests the Node.js library with its own runner.
run_node() {
	level node
	[ ! -e "$base/node/node_modules" ] || ln -s "$base/node/node_modules" clients/node/node_modules
	# shellcheck disable=SC2086
	CLIENTS_NODE=$base/tree/clients/node run_tap_program node /usr/bin/python3 test/clients/node.py $1
}

# Runs the demo, which must pass. With forged cached values its readers must notice.
demo() {
	mkdir "$base/demo" && cp -R "$base/tree" "$base/demo" || return 2
	sh "$base/demo/tree/test/demo.sh" --inside "$base/demo" --seconds 5 $1 >"$base/demo.log" 2>&1
	status=$?
	rm -rf "$base/demo"
	return $status
}

run_demo() {
	level demo
	for expected in '0 PASS: nothing stale was read' '1 FAIL: values were read that PostgreSQL contradicts'; do
		sabotage=
		[ "${expected%% *}" -eq 0 ] || sabotage=--sabotage
		demo $sabotage
		if [ $? -eq "${expected%% *}" ] && grep -q "^${expected#* }" "$base/demo.log"; then
			say "ok - demo $sabotage: ${expected#* }"
			passed=$((passed + 1))
		else
			say "not ok - demo $sabotage: ${expected#* }"
			tail -n 40 "$base/demo.log"
			failed=$((failed + 1))
		fi
	done
}

# Prints the output of the failing files and their servers; of all files, if prove ended before its summary.
show_tap_logs() {
	failing=$(sed -n 's/^test\/t\/[^ ]*\/\([^ ]*\)\.pl  *(Wstat.*/\1/p' "$1")
	for name in ${failing:-$2}; do
		for file in "tmp_check/log/regress_log_$name" tmp_check/log/"${name}"_*.log; do
			[ -e "$file" ] || continue
			say "--- end of $file"
			tail -n 60 "$file"
		done
	done
}

# Prints every half minute what is running.
tell_progress() {
	tell_newest "$base"
	case $newest in
	*/tap*.log)
		for file in tmp_check/log/regress_log_*; do
			name=${file##*/regress_log_}
			grep -qs "/${name}[.]pl [.]" "$newest" || printf '... at work: %s\n' "$name"
		done
		;;
	esac
}

# The sources of the extension and of the programs that make random choices, always in the same order
sources() {
	find src sql test/compare test/fuzz test/history test/lib \( -name '*.[ch]' -o -name '*.lua' -o -name '*.sql' -o -name '*.p[lmy]' \) \
		! -name fence_lua.h | LC_ALL=C sort | xargs cat
}

begin_inside "$base"
[ -n "$seed" ] || [ -z "$all" ] || seed=$(od -An -N 3 -t u4 /dev/urandom | tr -d ' ')
[ -n "$seed" ] || seed=$(($(sources | cksum | cut -d' ' -f1) % 10000000))
say "seed $seed: --seed $seed repeats the random choices"
pulse tell_progress
say "PostgreSQL $("$bindir/postgres" --version | sed 's/.*) //'), $("$REDIS_SERVER" --version | cut -d' ' -f1-3)"

level 'lint, build'
if ! make -s lint; then
	failed=$((failed + 1))
fi
if ! build; then
	failed=$((failed + 1))
	finish
fi

unit=
regress=
isolation=
tap=
fuzz=
compare=
history=
model=
clients=
python=
bench=
node=
demo=
if wanted unit; then unit=$(chosen test/unit .sh); fi
if wanted regress; then regress=$(chosen sql .sql); fi
if wanted isolation; then isolation=$(chosen test/isolation/specs .spec); fi
if wanted tap; then tap=$(tap_chosen); fi
if wanted fuzz; then fuzz=$(fuzz_chosen); fi
if wanted compare; then compare=$(compare_chosen); fi
if wanted history; then history=$(history_chosen); fi
if wanted model; then model=$(model_chosen); fi
if wanted clients; then clients=$(clients_chosen); fi
if wanted python; then python=$(python_chosen); fi
if wanted node; then node=$(chosen clients/node/test .test.js); fi
case "$patterns " in *' bench '*)
	if wanted python; then bench=1; fi
	if wanted node; then node="$node bench"; fi
	;;
esac
if wanted demo && [ -z "$patterns" ]; then demo=1; fi
[ -n "$unit$regress$isolation$tap$fuzz$compare$history$model$clients$python$bench$node$demo" ] || [ -e "$base/matrix.log" ] ||
	{ say 'no such test'; failed=$((failed + 1)); finish; }

[ -z "$unit" ] || run_unit "$unit"
if [ -n "$regress$isolation" ]; then
	run_shared_servers "$regress" "$isolation"
	with_triggers run_shared_servers "$regress" "$isolation"
fi
if [ -n "$tap" ]; then
	run_tap "$tap"
	[ -z "$all" ] || with_triggers run_tap "$tap"
fi
together "${fuzz:+run_fuzz}" "${compare:+run_compare}"
together "${clients:+run_clients '$clients'}" "${python:+run_python '$python'}" "${node:+run_node '$node'}"
[ -z "$bench" ] || run_tap_program python-bench /usr/bin/python3 clients/python/tests/bench.py
[ -z "$demo" ] || run_demo
[ -z "$model" ] || run_model "$model"
[ -z "$history" ] || run_history "$history"
finish
