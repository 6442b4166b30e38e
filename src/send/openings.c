/*
 * send/openings.c
 *	  The courier opens buckets; see openings.h.
 *
 * One opening at a time goes on for each process: fence_open says what is wanted there. Its reply sets the bits, and
 * notes who is committing without having reserved everything. When all of these are visible, or gone, the next call of
 * fence_open names the buckets. Its reply ends the batch, for which readers of this server wait.
 *
 * What is lost on the way, with a connection or with the courier, is wanted again by the next reader that misses. The
 * bits stay set meanwhile, which costs reservations and nothing else.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/buckets.h"
#include "base/settings.h"
#include "base/word.h"
#include "send/openings.h"

/* Microseconds between two calls of fence_open at one process: */
#define PAUSE_US		INT64CONST(5000)	/* while its readers have missed something lately */
#define IDLE_PAUSE_US	INT64CONST(15000)	/* if not: a first miss must be noticed soon, too */
#define HURRIED_PAUSE_US INT64CONST(1000)	/* if a reader of this server was refused */
#define LATELY_US		INT64CONST(1000000)

#define MOST_FORMER		16				/* turns that a process may name; PostgreSQL has fewer maps */
#define SHORTEST_TURN_US INT64CONST(60000000)	/* unless many bits are set */

#define CLOSED_PAUSE_MS	100				/* between two looks at the word while the fences are not OPEN */
#define MOST_WANTED		1000			/* buckets in one call; buckets.lua names no more */

typedef struct Opening
{
	bool		asked;			/* a reply is outstanding */
	int64		next_at;		/* fence_clock() time of the next call */
	int64		called_at;		/* of the last call */
	int64		wanted_at;		/* of the last answer that named something */
	uint32		epoch;			/* the bits were set in this epoch and turn; only there they may be opened */
	uint32		turn;
	uint32		batch;			/* from when its bits are set until Redis has answered, or they are dropped; else 0 */
	int			n;				/* buckets that are to be opened */
	int			buckets[MOST_WANTED];
	int			nseen;			/* commits that were under way when the bits were set, and still are */
	FlagSeen   *seen;
	int64		wait_since;		/* fence_clock() time at which the bits were set */
	uint32		asked_epoch;	/* epoch and turn of the call that is outstanding */
	uint32		asked_turn;
	uint32		told_epoch;		/* what the last answer told was told in this epoch and turn: */
	uint32		told_turn;
	int64		longest;		/* ms: the longest time to live in this turn */
	int			nformer;		/* former turns of which something that was stored may be left */
	uint32		former[MOST_FORMER];
} Opening;

static Opening *openings[MAX_NODES];
static bool is_open = false;
static uint32 present_turn;
static int64 turn_since = 0;		/* fence_clock() time since which this courier has seen present_turn */

static Opening *
opening_of(int node)
{
	Opening    *opening = openings[node];

	if (opening == NULL)
	{
		opening = MemoryContextAllocZero(TopMemoryContext, sizeof(Opening));
		opening->seen = MemoryContextAlloc(TopMemoryContext, sizeof(FlagSeen) * fence_shared->ncommit_flags);
		openings[node] = opening;
	}
	return opening;
}

/*
 * A map is forgotten as long after its turn as the longest time to live is. So with a turn for each third of that, no more bits
 * are set than for what is stored within 4/3 of it.
 */
static void
take_turn(void)
{
	int64		longest = 0;

	if (turn_since == 0 || present_turn != buckets_turn())
		turn_since = fence_clock();
	present_turn = buckets_turn();
	for (int i = 0; i < nlinks; i++)
		if (openings[i] && openings[i]->told_epoch == buckets_epoch() && openings[i]->told_turn == present_turn)
			longest = Max(longest, openings[i]->longest);
	(void) buckets_take_turn(fence_clock() - turn_since > Max(longest * 1000 / (BUCKET_MAPS - 1), SHORTEST_TURN_US));
}

bool
openings_begin_round(void)
{
	FenceWord	word;
	BucketsNow	now;

	if (setting_watch_buckets == 0)
		return false;
	word = fence_word();
	is_open = WORD_STATE(word) == FENCE_OPEN;
	buckets_tidy();
	if (!is_open)
		return false;
	if (buckets_epoch() != WORD_EPOCH(word))
		buckets_begin(WORD_EPOCH(word));
	if (buckets_is_hurry())
		for (int i = 0; i < nlinks; i++)
			if (openings[i])
				openings[i]->next_at = Min(openings[i]->next_at, openings[i]->called_at + HURRIED_PAUSE_US);
	take_turn();
	buckets_now(&now);
	metrics_set_server(SERVER_METRIC_BUCKETS_SET, now.set + now.set_before);
	return true;
}

bool
openings_is_due(int node)
{
	Opening    *opening = opening_of(node);

	if (opening->asked)
		return false;
	if (opening->n > 0 && (opening->epoch != buckets_epoch() || opening->turn != buckets_turn()))
		opening->n = opening->nseen = opening->batch = 0;
	if (opening->nseen > 0)
		opening->nseen = fence_commit_flags_left(opening->seen, opening->nseen);
	return opening->nseen == 0 && fence_clock() >= opening->next_at;
}

/* Sets the bits of what is wanted, then looks who is committing. Whoever begins to commit later sees the bits. */
static void
take_wanted(Opening *opening, const char *wanted)
{
	opening->epoch = buckets_epoch();
	opening->turn = buckets_turn();
	if (*wanted != '\0')
		opening->batch = buckets_begin_batch();
	while (*wanted >= '0' && *wanted <= '9' && opening->n < MOST_WANTED)
	{
		char	   *end;
		unsigned long bucket = strtoul(wanted, &end, 10);

		if (bucket < (unsigned long) setting_watch_buckets && bucket_set((int) bucket))
			opening->buckets[opening->n++] = (int) bucket;
		wanted = *end == ',' ? end + 1 : end;
	}
	if (opening->n > 0)
		opening->nseen = fence_commit_flags_of_part(opening->seen);
	else
		opening->batch = 0;
	opening->wait_since = fence_clock();
}

static void
take_told(Opening *opening, const OpenReply *answer)
{
	const char *p = answer->former;

	opening->told_epoch = opening->asked_epoch;
	opening->told_turn = opening->asked_turn;
	opening->longest = answer->longest;
	for (opening->nformer = 0; *p && opening->nformer < MOST_FORMER; opening->nformer++)
	{
		opening->former[opening->nformer] = strtoul(p, NULL, 10);
		p += strcspn(p, ",");
		p += *p == ',';
	}
	if (*p)
		opening->told_epoch = 0;	/* too many: nothing may be forgotten */
}

static void
answer_open(const Expected *e, const redisReply *reply)
{
	Opening    *opening = openings[e->number];
	OpenReply	answer;

	opening->asked = false;
	opening->batch = 0;
	if (reply == NULL || !calls_open(reply, &answer))
		return;
	take_told(opening, &answer);
	take_wanted(opening, answer.wanted);
	if (opening->n == 0)
		return;
	opening->next_at = 0;
	opening->wanted_at = fence_clock();
}

void
openings_send(Link *link)
{
	static char text[MOST_WANTED * 10];
	static RespBuffer strings;
	Message		message = {.kind = MESSAGE_OPEN};
	int			node = link - links;
	Opening    *opening = opening_of(node);
	char	   *p = text;
	Call		call;

	for (int i = 0; i < opening->n; i++)
		p += sprintf(p, i ? ",%d" : "%d", opening->buckets[i]);
	*p = '\0';
	call_open(&call, buckets_epoch(), buckets_turn(), setting_clock_margin, text);
	opening->n = 0;
	opening->asked = true;
	opening->asked_epoch = buckets_epoch();
	opening->asked_turn = buckets_turn();
	opening->called_at = fence_clock();
	opening->next_at = opening->called_at + (opening->called_at < opening->wanted_at + LATELY_US ? PAUSE_US : IDLE_PAUSE_US);
	(void) calls_encode(&strings, &call);
	message.strings = strings.strings;
	message.bytes = strings.bytes;
	message.len = strings.len;
	link_make_room(link);
	link_send_message(link, &message, (Expected) {.answer = answer_open, .number = node, .process = -1});
}

/* Whether the process has closed its buckets in the present turn, and nothing is left there of what it stored in the former one. */
static bool
is_gone(const Opening *opening, uint32 turn)
{
	if (opening->told_epoch != buckets_epoch() || opening->told_turn != buckets_turn())
		return false;
	for (int i = 0; i < opening->nformer; i++)
		if (opening->former[i] == turn)
			return false;
	return true;
}

void
openings_end_round(int nnodes, const bool granted[])
{
	int64		since = 0;
	uint32		opened = buckets_begun();
	uint32		former[BUCKET_MAPS];
	int			nformer;

	for (int i = 0; i < nnodes; i++)
	{
		const Opening *opening = openings[i];

		if (opening && opening->nseen > 0 && (since == 0 || opening->wait_since < since))
			since = opening->wait_since;
		if (opening && opening->batch != 0 && (int32) (opened - opening->batch) >= 0)
			opened = opening->batch - 1;
	}
	buckets_note_wait(since);
	buckets_note_opened(opened);
	nformer = buckets_former(former);
	for (int f = 0; f < nformer; f++)
	{
		bool		gone = true;

		for (int i = 0; i < nnodes; i++)
			gone = gone && (!granted[i] || is_gone(opening_of(i), former[f]));
		if (gone)
			buckets_forget(former[f]);
	}
}

long
openings_pause(void)
{
	int64		first = IDLE_PAUSE_US;

	if (setting_watch_buckets == 0)
		return -1;
	if (!is_open)
		return CLOSED_PAUSE_MS;
	for (int i = 0; i < nlinks; i++)
	{
		const Opening *opening = openings[i];

		if (opening && !opening->asked)
			first = Min(first, opening->nseen > 0 ? 1000 : Max(opening->next_at - fence_clock(), 0));
	}
	return (long) ((first + 999) / 1000);
}
