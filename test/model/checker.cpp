/*
 * checker.cpp
 *	  Visits every reachable state, breadth first, and prints a shortest trace to the first violation.
 *
 *	  checker [-q] [NAME=NUMBER | NAME]...	-q: prints no trace. Exit status: 0 no violation, 1 a violation, 3 too many states.
 */
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include "state.h"

#define DEFINE_SWITCH(name, value, what) int name = value;
CONFIGURATION(DEFINE_SWITCH)
RULES_LEFT_OUT(DEFINE_SWITCH)

static struct
{
	const char *name;
	int		   *value;
}			switches[] = {
#define LIST_SWITCH(name, value, what) {#name, &name},
	CONFIGURATION(LIST_SWITCH)
	RULES_LEFT_OUT(LIST_SWITCH)
};

/* -----------------------------------------------------------------------------------------------------------------
 * The next states of a state
 * -----------------------------------------------------------------------------------------------------------------
 */

enum {MAX_NEXT = 4096, MAX_LABEL = 200};

struct Next
{
	State		state;
	const char *violation;
};

static Next next[MAX_NEXT];
static int	nnext;
static bool labels_wanted = false;
static char labels[MAX_NEXT][MAX_LABEL];

State &
add(const State &from, const char *label, ...)
{
	if (nnext == MAX_NEXT)
		abort();
	if (labels_wanted)
	{
		va_list		args;

		va_start(args, label);
		vsnprintf(labels[nnext], MAX_LABEL, label, args);
		va_end(args);
	}
	next[nnext].state = from;
	next[nnext].violation = nullptr;
	return next[nnext++].state;
}

void
violate(const char *what)
{
	next[nnext - 1].violation = what;
}

/* When all transactions are over and no message is under way, the patrol must be able to end every reservation. */
const char *
invariant(const State &s)
{
	bool		drops_all = patrol && !patrol_drops_nothing && !patrol_drops_committed_only;

	if (!patrol || drops_all || s.patrol_on)
		return nullptr;
	for (int i = 0; i < writers; i++)
		if (!is_over(s.w[i].fate) || s.w[i].step != W_OVER || s.w[i].late || s.w[i].end)
			return nullptr;
	for (int p = 0; p < processes; p++)
		for (int i = 0; i < writers; i++)
		{
			bool		left = s.p[p].domain_pending >> i & 1;

			for (int k = 0; k < keys; k++)
				left = left || (s.p[p].pending[k] >> i & 1);
			if (s.p[p].up && s.p[p].epoch && left && (patrol_drops_nothing || s.w[i].fate != COMMITTED))
				return "LEAK: nobody ends this reservation";
		}
	return nullptr;
}

/* Adds the contents that are current now to FastReader.together. */
static void
note_together(State &s)
{
	if (s.f.step == F_HAS_TOKEN && s.row[0] != ABSENT)
		s.f.together |= 1 << s.row[0];
	else if (s.f.step == F_HAS_FIRST && s.row[0] == s.f.content && s.row[1] != ABSENT)
		s.f.together |= 1 << s.row[1];
}

static void
find_next(const State &s)
{
	nnext = 0;
	for (int i = 0; i < writers; i++)
	{
		writer_steps(s, i);
		message_steps(s, i);
	}
	for (int j = 0; j < readers; j++)
		reader_steps(s, j);
	if (fast_readers)
		fast_reader_steps(s);
	if (patrol)
		patrol_steps(s);
	fault_steps(s);
	if (keeper)
		keeper_steps(s);
	if (moves)
		move_steps(s);
	if (buckets)
		bucket_steps(s);
	if (standby)
		standby_steps(s);
	if (deposed)
		deposed_steps(s);
	for (int n = 0; n < nnext; n++)
	{
		note_together(next[n].state);
		if (next[n].violation == nullptr)
			next[n].violation = invariant(next[n].state);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * The states found so far: a hash table of states, packed to the parts that the configuration uses
 * -----------------------------------------------------------------------------------------------------------------
 */

static size_t state_size;
static byte *states;			/* in the order in which they were found */
static uint32_t *parents;		/* for each state, the one before it on the way to it */
static size_t nstates;
static std::vector<uint32_t> table;	/* index + 1 */

/* Calls move(place in the State, place in the packed one, length) for each part. */
template<class Move> static void
for_parts(Move move)
{
	size_t		packed = 0;
	auto		part = [&](size_t offset, size_t length) {
		move(offset, packed, length);
		packed += length;
	};

	part(0, offsetof(State, w));
	part(offsetof(State, w), sizeof(Writer) * writers);
	part(offsetof(State, p), sizeof(Process) * processes);
	part(offsetof(State, r), sizeof(Reader) * readers);
	part(offsetof(State, f), fast_readers ? sizeof(FastReader) : 0);
	part(offsetof(State, b), standby ? sizeof(Standby) : 0);
	part(offsetof(State, d), deposed ? sizeof(Deposed) : 0);
	state_size = (packed + 7) & ~(size_t) 7;
}

static void
pack(const State &s, byte *to)
{
	memset(to + state_size - 8, 0, 8);
	for_parts([&](size_t offset, size_t packed, size_t length) { memcpy(to + packed, (const byte *) &s + offset, length); });
}

static State
unpack(size_t n)
{
	State		s;

	memset(&s, 0, sizeof(s));
	for_parts([&](size_t offset, size_t packed, size_t length) { memcpy((byte *) &s + offset, states + n * state_size + packed, length); });
	return s;
}

static uint64_t
hash_of(const byte *packed)
{
	uint64_t	hash = 0x9E3779B97F4A7C15ull;

	for (size_t i = 0; i < state_size; i += 8)
	{
		uint64_t	word;

		memcpy(&word, packed + i, 8);
		hash = (hash ^ word) * 0xff51afd7ed558ccdull;
		hash ^= hash >> 32;
	}
	hash *= 0xc4ceb9fe1a85ec53ull;
	return hash ^ hash >> 29;
}

static void
grow_table()
{
	size_t		mask = table.size() * 2 - 1;

	table.assign(mask + 1, 0);
	for (size_t n = 0; n < nstates; n++)
	{
		size_t		at = hash_of(states + n * state_size) & mask;

		while (table[at])
			at = (at + 1) & mask;
		table[at] = n + 1;
	}
}

/* Adds a state. Returns false if it was there already. */
static bool
remember(const State &s, size_t parent)
{
	byte	   *packed = states + nstates * state_size;
	size_t		mask = table.size() - 1;
	size_t		at;

	pack(s, packed);
	for (at = hash_of(packed) & mask; table[at]; at = (at + 1) & mask)
		if (memcmp(states + (table[at] - 1) * state_size, packed, state_size) == 0)
			return false;
	parents[nstates] = parent;
	table[at] = ++nstates;
	if (nstates * 2 > table.size())
		grow_table();
	return true;
}

static void
reserve_memory()
{
	size_t		most = (size_t) limit * 1000000 + MAX_NEXT;
	auto		map = [](size_t size) {
		void	   *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (memory == MAP_FAILED)
		{
			perror("mmap");
			exit(2);
		}
		return memory;
	};

	for_parts([](size_t, size_t, size_t) {});
	states = (byte *) map(most * state_size);
	parents = (uint32_t *) map(most * sizeof(uint32_t));
	table.assign(1 << 16, 0);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The search
 * -----------------------------------------------------------------------------------------------------------------
 */

static State
first_state()
{
	State		s;

	memset(&s, 0, sizeof(s));
	s.word = OPEN;
	s.word_epoch = s.last_epoch = s.epoch_armed = s.armed_identity = s.bits_epoch = 1;
	s.bound = lease;
	s.next_identity = moves ? 3 : 2;
	s.start = 1;
	s.next_start = 2;
	for (int p = 0; p < (moves ? 2 : 1); p++)
	{
		Process    &q = s.p[p];

		q.up = q.epoch = q.server = q.announced = 1;
		q.identity = p + 1;
		q.lease = lease;
		q.token = one_token_for_all ? 1 : p + 1;
	}
	if (moves)
		s.p[0].serves = s.p[0].granted = s.p[0].had = 1;
	for (int k = 0; k < keys; k++)
		if (row_absent)
			s.row[k] = ABSENT;
		else if (!buckets)
			s.p[0].fence[k] = 1;
	return s;
}

static void
print_state(const State &s)
{
	printf("        rows");
	for (int k = 0; k < keys; k++)
		printf(s.row[k] == ABSENT ? " %s=none" : " %s=%d", name_of(1 << k), s.row[k]);
	for (int p = 0; p < processes; p++)
	{
		const Process &q = s.p[p];

		if (!q.up)
			continue;
		printf(" | P%d: token %d", p, q.token);
		if (keeper)
			printf(" identity %d epoch %d lease %d", q.identity, q.epoch, q.lease);
		if (moves)
			printf(" serves %d granted %d lost %d", q.serves, q.granted, q.lost);
		for (int k = 0; k < keys; k++)
		{
			if (q.fence[k])
				printf(" %s{%d by %d}", name_of(1 << k), q.fence[k], q.content[k]);
			for (int i = 0; i < writers; i++)
				if (q.pending[k] >> i & 1)
					printf(" pending(%s, T%d%s)", name_of(1 << k), i + 1, q.proven[k] >> i & 1 ? ", proven" : "");
		}
		for (int i = 0; i < writers; i++)
			if (q.domain_pending >> i & 1)
				printf(" pending(domain, T%d)", i + 1);
		if (buckets)
			printf(" open %d turn %d", q.open, q.turn);
	}
	if (standby)
		printf(" | replayed %d of %d, mark %d at P%d: position %d clean %d", s.b.replayed, s.b.logged, s.b.mark_step, s.b.mark_process,
			   s.b.mark_position, s.b.mark_clean);
	if (buckets)
		printf(" | bits %d, before %d of turn %d and %d of turn %d, of epoch %d turn %d", s.bits[0], s.bits[1], s.turn_of[1], s.bits[2], s.turn_of[2],
			   s.bits_epoch, s.turn_of[0]);
	if (keeper)
		printf(" | %s %d, bound %d%s", s.word == OPEN ? "OPEN" : s.word == CLOSED ? "CLOSED" : "ARMING", s.word_epoch, s.bound,
			   s.bypassed ? ", bypassed" : "");
	if (s.d.there)
		printf(" | old primary: a=%d epoch %d, retired at P0 %d, P1 %d", s.d.row[0], s.d.epoch, s.d.retired[0], s.d.retired[1]);
	printf("\n");
}

/* Prints the way to state n, and from there to the violation. */
static void
print_trace(size_t n, const char *violation)
{
	std::vector<size_t> path;
	std::vector<byte> packed(state_size);
	int			step = 1;

	for (size_t at = n; at != 0; at = parents[at])
		path.push_back(at);
	path.push_back(0);
	labels_wanted = true;
	for (size_t i = path.size() - 1; i > 0; i--)
	{
		find_next(unpack(path[i]));
		for (int k = 0; k < nnext; k++)
		{
			pack(next[k].state, packed.data());
			if (memcmp(packed.data(), states + path[i - 1] * state_size, state_size) != 0)
				continue;
			printf("  %2d %s\n", step++, labels[k]);
			print_state(next[k].state);
			break;
		}
	}
	find_next(unpack(n));
	for (int k = 0; k < nnext; k++)
		if (next[k].violation)
		{
			printf("  %2d %s   <== %s\n", step, labels[k], violation);
			print_state(next[k].state);
			return;
		}
}

static bool
set_switch(const char *argument)
{
	const char *equals = strchr(argument, '=');
	size_t		len = equals ? (size_t) (equals - argument) : strlen(argument);

	for (auto &s : switches)
		if (strlen(s.name) == len && strncmp(s.name, argument, len) == 0)
		{
			*s.value = equals ? atoi(equals + 1) : 1;
			return true;
		}
	return false;
}

int
main(int argc, char **argv)
{
	bool		quiet_trace = false;
	const char *violation = nullptr;
	size_t		n = 0;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "-q") == 0)
			quiet_trace = true;
		else if (!set_switch(argv[i]))
		{
			printf("there is no switch %s\n", argv[i]);
			return 2;
		}
	reserve_memory();
	remember(first_state(), 0);
	for (; n < nstates && !violation && nstates < (size_t) limit * 1000000; n++)
	{
		find_next(unpack(n));
		for (int k = 0; k < nnext && !violation; k++)
		{
			violation = next[k].violation;
			if (!violation)
				remember(next[k].state, n);
		}
	}
	printf("%s: %zu states%s%s\n", violation ? "VIOLATION" : n < nstates ? "TOO MANY" : "HOLDS", nstates, violation ? ": " : "",
		   violation ? violation : "");
	if (violation && !quiet_trace)
		print_trace(n - 1, violation);
	return violation ? 1 : n < nstates ? 3 : 0;
}
