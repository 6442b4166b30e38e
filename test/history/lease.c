/*
 * lease.c
 *	  The strategy "lease-timeout": a version fence in Redis with reservations. The application makes and ends reservations; if it
 *	  does not end one, a timeout does. The strategy has six defects that occur in practice. A bit of options.defects
 *	  (1 << (n - 1)) switches each one on:
 *
 *	  1  a reader that finds the fence ahead of what it read "repairs" it downwards
 *	  2  a writer sets the fence to the version that it observed
 *	  3  the lease of a reservation ends, its transaction does not
 *	  4  reservations are keys: what loses keys loses reservations (always there; needs a fault)
 *	  5  versions are doubles (always there; needs versions above 2^53)
 *	  6  a writer that observes the reserved version takes it for committed: it may be its own
 *
 * Values are kept in Redis and, as level 1, in each process; both are used only at or above the fence's version.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define TOKEN_SIZE	sizeof(((Change *) NULL)->token)

static Row	level1[2 * KEYS_MAX + 1];

/* fence: hash of c (committed), p (pending), t (its token), u (its lease, until) */
#define PROLOGUE \
	"local time = redis.call('TIME')\n" \
	"local now = time[1] * 1000 + math.floor(time[2] / 1000)\n" \
	"local f = redis.call('HMGET', KEYS[1], 'c', 'p', 't', 'u')\n" \
	"local c, p, t = tonumber(f[1] or nil), tonumber(f[2] or nil), f[3]\n" \
	"local function text(n) return string.format('%.0f', n) end\n" \
	"local function defect(n) return math.floor(tonumber(ARGV[1]) / 2 ^ (n - 1)) % 2 == 1 end\n" \
	"local function finish() redis.call('HDEL', KEYS[1], 'p', 't', 'u') p = nil end\n" \
	"if p and tonumber(f[4]) <= now and defect(3) then finish() end\n"

static const char *const get_script = PROLOGUE
	"if p then return {'pending'} end\n"
	"if not c then return {'miss', '0'} end\n"
	"return {'fence', text(c), redis.call('GET', KEYS[2]) or ''}";

static const char *const store_script = PROLOGUE
	"local w = tonumber(ARGV[2])\n"
	"if p and w >= p then finish() end\n"
	"if ARGV[4] == 'repair' and (not c or w > c or (w < c and not p and defect(1))) then\n"
	"  redis.call('HSET', KEYS[1], 'c', text(w))\n"
	"end\n"
	"local present = redis.call('GET', KEYS[2])\n"
	"if not present or w >= tonumber(string.match(present, '^%d+')) then\n"
	"  redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])\n"
	"end";

static const char *const begin_script = PROLOGUE
	"local observed = tonumber(ARGV[2])\n"
	"if p and p == observed and defect(6) then c = p finish() end\n"
	"if p then return {'conflict'} end\n"
	"if not c or c < observed or defect(2) then c = observed end\n"
	"redis.call('HSET', KEYS[1], 'c', text(c), 'p', text(c + 1), 't', ARGV[3], 'u', text(now + tonumber(ARGV[4])))\n"
	"return {'reserved', text(c + 1)}";

static const char *const commit_script = PROLOGUE
	"if not p or t ~= ARGV[2] then return end\n"
	"redis.call('HSET', KEYS[1], 'c', text(p))\n"
	"finish()";

static const char *const abort_script = PROLOGUE
	"if p and t == ARGV[2] then finish() end";

static redisReply *
evaluate(Client *c, const char *script, int key, const char *a, const char *b, const char *d)
{
	char		fence[160];
	char		value[160];
	char		defects[16];

	follow_endpoints(c);
	snprintf(fence, sizeof(fence), "%s%d}", c->at.fence, key);
	snprintf(value, sizeof(value), "%s%d}", c->at.value, key);
	snprintf(defects, sizeof(defects), "%d", options.defects);
	return redis_call(c, 9, (const char *[]) {"EVAL", script, "2", fence, value, defects, a, b, d});
}

void
lease_get(Client *c, int key, Cached *found)
{
	redisReply *reply = evaluate(c, get_script, key, "", "", "");
	Row		   *near = &level1[key];
	Row			far = {0};
	int64_t		fence;
	char	   *rest;

	found->kind = READ_ERROR;
	if (is_word(reply, 0, "pending"))
		found->kind = READ_PENDING;
	else if (is_word(reply, 0, "miss"))
		found->kind = READ_MISS;
	else if (is_word(reply, 0, "fence") && reply->elements == 3)
	{
		found->kind = READ_MISS;
		fence = strtoll(reply->element[1]->str, NULL, 10);
		far.version = strtoll(reply->element[2]->str, &rest, 10);
		far.val = strtoll(rest, NULL, 10);
		/* use the value in the process first, and the one in Redis only if the former is too old */
		if ((near->val == 0 || near->version < fence) && far.val != 0 && far.version >= fence)
			*near = far;
		if (near->val != 0 && near->version >= fence)
		{
			found->kind = READ_HIT;
			found->row = *near;
		}
	}
	discard(reply);
}

/* Stores the value unless there is a newer one. A reader also raises the fence to the version that it has read. */
static void
store(Client *c, int key, const Row *row, const char *repair)
{
	char		version[24];
	char		val[24];

	snprintf(version, sizeof(version), "%lld", (long long) row->version);
	snprintf(val, sizeof(val), "%lld", (long long) row->val);
	discard(evaluate(c, store_script, key, version, val, repair));
	if (row->version >= level1[key].version)
		level1[key] = *row;
}

void
lease_fill(Client *c, int key, const Cached *found, const Row *row)
{
	(void) found;
	store(c, key, row, "repair");
}

bool
lease_reserve(Client *c, Change *change)
{
	char		observed[24];
	char		lease[16];
	redisReply *reply;
	bool		reserved;

	snprintf(change->token, TOKEN_SIZE, "%d.%lld", c->worker, (long long) now_ns());
	snprintf(observed, sizeof(observed), "%lld", (long long) change->row.version);
	snprintf(lease, sizeof(lease), "%d", options.lease_ms);
	reply = evaluate(c, begin_script, change->key, observed, change->token, lease);
	reserved = is_word(reply, 0, "reserved") && reply->elements == 2;
	if (reserved)
		change->row.version = strtoll(reply->element[1]->str, NULL, 10);
	discard(reply);
	return reserved;
}

void
lease_committed(Client *c, const Txn *txn)
{
	for (int i = 0; i < txn->n; i++)
	{
		discard(evaluate(c, commit_script, txn->changes[i].key, txn->changes[i].token, "", ""));
		if (is_last(txn, i))
			store(c, txn->changes[i].key, &txn->changes[i].row, "");
	}
}

void
lease_aborted(Client *c, const Change *changes, int n)
{
	for (int i = 0; i < n; i++)
		discard(evaluate(c, abort_script, changes[i].key, changes[i].token, "", ""));
}
