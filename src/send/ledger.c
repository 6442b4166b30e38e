/*
 * send/ledger.c
 *	  The reservations of this transaction; see ledger.h.
 *
 * Savepoints: before `applied` and `payload` change for the first time in a nesting level, their values are pushed on a
 * stack. A rollback of the level pops its part of the stack. A release hands its part to the parent level, which costs
 * nothing per reservation. At the top level a release drops its part. So ten thousand savepoints in a loop take linear
 * time.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"

#include "domain/domain_cache.h"
#include "send/ledger.h"

typedef struct LedgerEntry
{
	const char *name;			/* hash key, compared by content */
	Reservation *reservation;
	uint32		hash;
	char		status;			/* belongs to simplehash.h */
} LedgerEntry;

static uint32
hash_name(const char *name)
{
	return hash_bytes((const unsigned char *) name, strlen(name));
}

/* Many rows of one transaction are looked up one by one, and dynahash would take twice as long. */
#define SH_PREFIX		names
#define SH_ELEMENT_TYPE	LedgerEntry
#define SH_KEY_TYPE		const char *
#define SH_KEY			name
#define SH_HASH_KEY(table, key)	hash_name(key)
#define SH_EQUAL(table, a, b)	(strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(table, entry)	((entry)->hash)
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define FEW		4				/* up to this many are found by a linear search, which is faster than to build a hash table */

/* Counts for one domain. A transaction has only a few domains, so they are in a list. */
typedef struct DomainCount
{
	int64		domain_id;
	int			rows;
	int			rows_needed;
	uint64		rows_held;		/* see ledger_hold; also those of savepoints that were rolled back */
	Reservation *whole;			/* reservation of the whole domain; NULL: none in this transaction; nothing wanted: see ledger_hold */
	struct DomainCount *next;
} DomainCount;

/* Values of `applied` and `payload` before a nesting level changed them */
typedef struct Saved
{
	Reservation *reservation;
	int64		applied;
	char	   *payload;
	SubTransactionId applied_in;
} Saved;

/* The saved entries from `first` on belong to nesting level `level` */
typedef struct Level
{
	int			level;
	int			first;
} Level;

static names_hash *entries = NULL;	/* reservations without a stamp of their own; NULL: there are only a few */
static int	nreservations = 0;
static Reservation *first_reservation = NULL;
static Reservation **last_link = &first_reservation;
static DomainCount *domain_counts = NULL;
static DomainCount first_count; /* the only one in most transactions */
static bool catalog_changed = false;
static Size payload_bytes = 0;	/* of all payloads, current and saved */

static Saved *saved = NULL;
static bool closed = false;		/* see ledger_close() */
static int	nsaved = 0,
			saved_size = 0;
static Level *levels = NULL;
static int	nlevels = 0,
			levels_size = 0;

static void
add_to_table(names_hash *table, const char *name, uint32 hash, Reservation *r)
{
	bool		found;

	names_insert_hash(table, name, hash, &found)->reservation = r;
}

/* Builds the hash table of all reservations that ledger_find() must find. */
static names_hash *
make_table(void)
{
	names_hash *table = names_create(TopTransactionContext, 64, NULL);

	for (Reservation *r = first_reservation; r != NULL; r = r->next)
		if (r->stamp == NULL)
			add_to_table(table, r->name, hash_name(r->name), r);
	return table;
}

static DomainCount *
find_count(int64 domain_id)
{
	DomainCount *count = domain_counts;

	while (count != NULL && count->domain_id != domain_id)
		count = count->next;
	return count;
}

/* Returns the count of the domain; makes it if necessary. */
static DomainCount *
count_of(int64 domain_id)
{
	DomainCount *count = find_count(domain_id);

	if (count == NULL)
	{
		count = domain_counts == NULL ? memset(&first_count, 0, sizeof(DomainCount)) :
			MemoryContextAllocZero(TopTransactionContext, sizeof(DomainCount));
		count->domain_id = domain_id;
		count->next = domain_counts;
		domain_counts = count;
	}
	return count;
}

int
ledger_rows(int64 domain_id)
{
	DomainCount *count = find_count(domain_id);

	return count ? count->rows : 0;
}

int
ledger_rows_needed(int64 domain_id)
{
	DomainCount *count = find_count(domain_id);

	return count ? count->rows_needed : 0;
}

bool
ledger_is_whole(int64 domain_id)
{
	DomainCount *count = find_count(domain_id);

	return count && count->whole && count->whole->wanted != NO_VERSION;
}

bool
ledger_whole_applied(int64 domain_id)
{
	DomainCount *count = find_count(domain_id);

	return count && count->whole && count->whole->applied != NO_VERSION;
}

static void
initialise(Reservation *r, ReservationKind kind, const char *name, const Domain *domain)
{
	memset(r, 0, sizeof(*r));
	r->kind = kind;
	r->wanted = r->leaving = r->applied = NO_VERSION;
	r->policy = domain_policy(domain);
	r->early = domain_reserves_early(domain);
	r->domain_id = domain->id;
	r->metrics = domain->metrics;
	r->bucket = ALWAYS_RESERVED;
	r->needed = true;
	r->name = name;
	*last_link = r;
	last_link = &r->next;
	nreservations++;
}

void
ledger_close(void)
{
	closed = true;
}

void
ledger_require_open(void)
{
	if (closed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot change a fenced table, or hold an effect, while the transaction commits"),
				 errdetail("Another library does so in its transaction callback, which runs after that of pgcache_fence."),
				 errhint("List pgcache_fence before that library in shared_preload_libraries.")));
}

Reservation *
ledger_detached(const char *name, const char *stamp, const Domain *domain)
{
	Reservation *r = MemoryContextAlloc(TopTransactionContext, sizeof(Reservation));

	ledger_require_open();
	stamp = MemoryContextStrdup(TopTransactionContext, stamp);
	initialise(r, RESERVE_ROW, MemoryContextStrdup(TopTransactionContext, name), domain);
	r->stamp = stamp;
	return r;
}

/*
 * The bucket of a row. A manual domain's owner asks for each reservation, and an event reaches subscribers only with the
 * end of one.
 */
static int
row_bucket(const Domain *domain, const char *name)
{
	return domain->scope == SCOPE_MANUAL || domain->events ? ALWAYS_RESERVED : bucket_of(name);
}

/* hash: of the name, if there is a table */
static Reservation *
find(const char *name, uint32 hash)
{
	Reservation *r = first_reservation;

	if (entries != NULL)
	{
		LedgerEntry *entry = names_lookup_hash(entries, name, hash);

		return entry ? entry->reservation : NULL;
	}
	while (r != NULL && (r->stamp != NULL || strcmp(r->name, name) != 0))
		r = r->next;
	return r;
}

static uint32
hash_if_needed(const char *name)
{
	return entries != NULL ? hash_name(name) : 0;
}

Reservation *
ledger_find(const char *name)
{
	return find(name, hash_if_needed(name));
}

Reservation *
ledger_reservation(ReservationKind kind, const char *name, const Domain *domain)
{
	uint32		hash = hash_if_needed(name);
	Reservation *r = find(name, hash);
	DomainCount *of_domain;

	ledger_require_open();
	if (r != NULL)
		return r;
	of_domain = count_of(domain->id);
	r = MemoryContextAlloc(TopTransactionContext, sizeof(Reservation) + strlen(name) + 1);
	name = strcpy((char *) (r + 1), name);
	/* if this raises for lack of memory, the reservation is not in the list yet */
	if (entries != NULL)
		add_to_table(entries, name, hash, r);
	initialise(r, kind, name, domain);
	r->manual = kind == RESERVE_ROW && domain->scope == SCOPE_MANUAL;
	r->notify = domain->notify;
	r->events = domain->events;
	r->ttl_ms = domain->ttl_ms;
	if (kind == RESERVE_ROW)
	{
		r->bucket = row_bucket(domain, name);
		r->needed = r->bucket == ALWAYS_RESERVED || bucket_is_set(r->bucket);
		of_domain->rows++;
		of_domain->rows_needed += r->needed;
	}
	else
		of_domain->whole = r;
	if (entries == NULL && nreservations > FEW)
		entries = make_table();
	return r;
}

Reservation *
ledger_first(void)
{
	return first_reservation;
}

bool
ledger_is_empty(void)
{
	return first_reservation == NULL;
}

void
ledger_note_written(const Domain *domain)
{
	ledger_require_open();
	(void) count_of(domain->id);
}

bool
ledger_has_written(const Domain *domain)
{
	bool		reserved_after = domain->scope == SCOPE_MANUAL || domain->version_aside;

	/* triggers that run before ours, or RETURNING, may already read a row that we reserve only in AFTER ROW */
	return find_count(domain->id) != NULL || (reserved_after && domain_has_writer_lock(domain));
}

void
ledger_catalog_changed(void)
{
	catalog_changed = true;
}

bool
ledger_catalog_has_changed(void)
{
	return catalog_changed;
}

Reservation *
ledger_apply_domain(const Domain *domain)
{
	DomainCount *count = count_of(domain->id);

	/* this runs for each row; another attachment may have reserved the same name earlier in this transaction */
	if (count->whole == NULL)
		count->whole = ledger_reservation(RESERVE_DOMAIN, domain->redis_name, domain);
	count->whole->wanted = WHOLE_DOMAIN;
	ledger_apply(count->whole, WHOLE_DOMAIN, NULL);
	return count->whole;
}

void
ledger_end_domain(const Domain *domain)
{
	Reservation *r = ledger_reservation(RESERVE_DOMAIN, domain->redis_name, domain);

	r->wanted = WHOLE_DOMAIN;
	ledger_apply(r, Max(domain->id, WHOLE_DOMAIN), NULL);
	ledger_catalog_changed();
}

/* -----------------------------------------------------------------------------------------------------------------
 * Buckets
 * -----------------------------------------------------------------------------------------------------------------
 */

bool
ledger_look_at_buckets(void)
{
	bool		any = false;

	for (Reservation *r = first_reservation; r != NULL; r = r->next)
	{
		if (r->needed || r->applied == NO_VERSION || !bucket_is_set(r->bucket))
			continue;
		r->needed = any = true;
		count_of(r->domain_id)->rows_needed++;
	}
	return any;
}

void
ledger_need_all(void)
{
	for (Reservation *r = first_reservation; r != NULL; r = r->next)
	{
		r->needed = true;
		if (r->kind == RESERVE_DOMAIN && r->wanted == NO_VERSION)
			ledger_apply(r, r->wanted = WHOLE_DOMAIN, NULL);
	}
}

bool
ledger_any(bool needed)
{
	for (Reservation *r = first_reservation; r != NULL; r = r->next)
		if (r->applied != NO_VERSION && r->needed == needed)
			return true;
	return false;
}

bool
ledger_any_applied(void)
{
	return ledger_any(true) || ledger_any(false);
}

/*
 * The reservation of the whole domain stands in the ledger with nothing wanted, so that ledger_need_all finds it. A row
 * of a domain that sends NOTIFY is kept, because its commit tells of it.
 */
bool
ledger_hold(const Domain *domain, const char *name)
{
	int			bucket = domain->notify ? ALWAYS_RESERVED : row_bucket(domain, name);

	ledger_require_open();
	if (bucket == ALWAYS_RESERVED || ledger_find(name) != NULL)
		return false;
	if (count_of(domain->id)->whole == NULL)
		count_of(domain->id)->whole = ledger_reservation(RESERVE_DOMAIN, domain->redis_name, domain);
	if (!bucket_hold(bucket))
		return false;
	count_of(domain->id)->rows_held++;
	return true;
}

void
ledger_count_closed(void)
{
	for (Reservation *r = first_reservation; r != NULL; r = r->next)
		if (!r->needed && r->applied != NO_VERSION)
			metrics_add(r->metrics, METRIC_COMMIT_CLOSED, 1);
	for (DomainCount *count = domain_counts; count != NULL; count = count->next)
		if (count->rows_held > 0)
			metrics_add(count->whole->metrics, METRIC_COMMIT_CLOSED, count->rows_held);
}

void
ledger_forget(void)
{
	entries = NULL;
	nreservations = 0;
	first_reservation = NULL;
	last_link = &first_reservation;
	domain_counts = NULL;
	catalog_changed = false;
	closed = false;
	payload_bytes = 0;
	saved = NULL;
	levels = NULL;
	nsaved = saved_size = nlevels = levels_size = 0;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Applied versions and savepoints
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Makes room for one more element in a growing array in TopTransactionContext. */
static void *
grow(void *array, int used, int *size, Size element)
{
	if (used < *size)
		return array;
	*size = *size ? *size * 2 : 64;
	if (array == NULL)
		return MemoryContextAllocHuge(TopTransactionContext, *size * element);
	return repalloc_huge(array, *size * element);
}

static void
free_payload(char *payload)
{
	if (payload == NULL)
		return;
	payload_bytes -= strlen(payload);
	pfree(payload);
}

/* Saves what the current subtransaction is about to change, once for each reservation and subtransaction. */
static void
save_applied(Reservation *r)
{
	int			level = GetCurrentTransactionNestLevel();

	if (level == 1 || r->applied_in == GetCurrentSubTransactionId())
	{
		free_payload(r->payload);	/* no rollback needs it again */
		r->payload = NULL;
		return;
	}
	if (nlevels == 0 || levels[nlevels - 1].level < level)
	{
		levels = grow(levels, nlevels, &levels_size, sizeof(Level));
		levels[nlevels++] = (Level) {.level = level, .first = nsaved};
	}
	saved = grow(saved, nsaved, &saved_size, sizeof(Saved));
	saved[nsaved++] = (Saved) {
		.reservation = r, .applied = r->applied, .payload = r->payload, .applied_in = r->applied_in
	};
	r->payload = NULL;
	r->applied_in = GetCurrentSubTransactionId();
}

void
ledger_apply(Reservation *r, int64 version, const char *payload)
{
	ledger_require_open();
	if (version <= r->applied)
		return;
	save_applied(r);
	r->applied = version;
	if (payload == NULL || payload_bytes + strlen(payload) > LEDGER_PAYLOADS)
		return;
	r->payload = MemoryContextStrdup(TopTransactionContext, payload);
	payload_bytes += strlen(payload);
}

void
ledger_withdraw(Reservation *r)
{
	save_applied(r);
	r->applied = NO_VERSION;
}

void
ledger_savepoint_release(int level)
{
	if (nlevels == 0 || levels[nlevels - 1].level < level)
		return;
	if (level - 1 <= 1)
	{
		/* the parent is the top level, which is never rolled back alone */
		while (nsaved > 0)
			free_payload(saved[--nsaved].payload);
		nlevels = 0;
		return;
	}
	/* if the parent has a part right below, this part joins it; otherwise this part becomes the parent's */
	if (nlevels >= 2 && levels[nlevels - 2].level == level - 1)
		nlevels--;
	else
		levels[nlevels - 1].level = level - 1;
}

void
ledger_savepoint_rollback(int level)
{
	if (nlevels == 0 || levels[nlevels - 1].level < level)
		return;
	while (nsaved > levels[nlevels - 1].first)
	{
		Saved	   *s = &saved[--nsaved];

		free_payload(s->reservation->payload);
		s->reservation->applied = s->applied;
		s->reservation->payload = s->payload;
		s->reservation->applied_in = s->applied_in;
	}
	nlevels--;
}
