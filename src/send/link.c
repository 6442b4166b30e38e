/*
 * send/link.c
 *	  Connections to the Redis processes and the replies that are outstanding on them; see link.h.
 *
 * Owns: `links`, their rings of expected replies, and link_problem. link_check and link_connect take the lock of shared
 * memory, to read the table of nodes.
 */
#include "postgres.h"

#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "redis/library.h"
#include "redis/reply_parser.h"
#include "send/link.h"

Link		links[MAX_NODES];
int			nlinks = 0;
uint32		link_changes = 0;
char		link_problem[REASON_LEN] = "";
void		(*link_on_problem) (const char *why) = NULL;

void
link_note(const char *why)
{
	strlcpy(link_problem, why, sizeof(link_problem));
	if (link_on_problem)
		link_on_problem(link_problem);
}

Link *
link_to(int node)
{
	Link	   *link = &links[node];

	if (link->draft == NULL)
	{
		link->expected = MemoryContextAlloc(TopMemoryContext, LINK_ANSWERS * sizeof(Expected));
		link->size = LINK_ANSWERS;
		link->draft = MemoryContextAlloc(TopMemoryContext, sizeof(WriteCall));
		write_call_clear(link->draft);
		nlinks = Max(nlinks, node + 1);
	}
	return link;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Answers
 * -----------------------------------------------------------------------------------------------------------------
 */

void
link_make_room(Link *link)
{
	Expected   *bigger;

	if (link_room(link) > 0)
		return;
	bigger = MemoryContextAllocHuge(TopMemoryContext, (Size) link->size * 2 * sizeof(Expected));
	for (uint32 p = link->first; p != link->next; p++)
		bigger[p & (link->size * 2 - 1)] = *link_expected(link, p);
	pfree(link->expected);
	link->expected = bigger;
	link->size *= 2;
}

/*
 * Passes the reply to all operations of the oldest outstanding call, and frees it. If it is the reply to another call,
 * closes the connection and returns false.
 */
static bool
deliver(Link *link, redisReply *reply)
{
	const Expected *e = link_expected(link, link->first);
	bool		ok = e->unnamed || calls_take_echo(reply, link->calls_answered);

	link->calls_answered++;
	if (!ok)
		link_hang_up(link, "Redis replied to another call than the oldest one, so a call or a reply was lost on the way");
	while (ok)
	{
		e = link_expected(link, link->first++);
		e->answer(e, reply);
		if (e->last)
			break;
	}
	redis_free_reply(reply);
	return ok;
}

void
link_hang_up(Link *link, const char *why)
{
	if (link->connection == NULL)
		return;
	if (why)
		link_note(why);
	redis_close(link->connection);
	link->connection = NULL;
	link_changes++;
	write_call_clear(link->draft);
	link->calls_answered = link->calls_sent;
	link->sent = link->next;
	while (link_is_busy(link))
	{
		const Expected *e = link_expected(link, link->first++);

		e->answer(e, NULL);
	}
}

static void
note_reply(Link *link, const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR)
		return;
	link->proven = true;
	link->connect_next = 0;
}

redisReply *
link_wait(Link *link, int64 deadline)
{
	redisReply *reply = redis_wait_reply(link->connection, deadline, wait_event_redis());

	if (reply == NULL)
		link_hang_up(link, redis_error(link->connection));
	else
		note_reply(link, reply);
	return reply;
}

bool
link_collect(Link *link, int64 deadline)
{
	while (link_is_busy(link))
	{
		redisReply *reply = link_wait(link, deadline);

		if (reply == NULL || !deliver(link, reply))
			return false;
	}
	return true;
}

bool
link_poll(Link *link)
{
	redisReply *reply;
	bool		any = false;

	if (link->connection == NULL)
		return false;
	while (link_is_busy(link) && (reply = redis_poll_reply(link->connection)) != NULL)
	{
		note_reply(link, reply);
		(void) deliver(link, reply);
		any = true;
	}
	if (link->connection && redis_error(link->connection))
		link_hang_up(link, redis_error(link->connection));
	return any;
}

void
link_forget(Link *link)
{
	if (link_has_draft(link))
		write_call_clear(link->draft);
	link->next = link->sent;
	for (uint32 p = link->first; p != link->sent; p++)
		link_expected(link, p)->owner = NULL;
}

void
link_answer_end(const Expected *e, const redisReply *reply)
{
	MessageResult result = calls_result(reply);

	metrics_count_end(&e->count, false, result);
	if (e->process >= 0)
		send_queue_give_answer(e->process, e->number, reply ? ANSWER_GRANTED : ANSWER_FAILED);
	if (result >= MESSAGE_LOST)
		fence_wake_patrol();	/* unarmed means a newer epoch, so no reservation is left to end */
}

int64
link_granted(const Expected *e, const redisReply *reply)
{
	int64		granted = reply ? calls_granted(reply) : 0;

	if (reply && !granted)
		link_note_refusal(reply);
	metrics_add(e->count.slot, granted ? METRIC_RESERVE_GRANTED : reply ? METRIC_RESERVE_FAILED : METRIC_RESERVE_TIMEOUT, 1);
	return granted;
}

void
link_note_refusal(const redisReply *reply)
{
	char		text[REASON_LEN];

	calls_refusal(reply, text, sizeof(text));
	link_note(text);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Connecting
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Reads the node's address and serial. Returns false if the table has no node with this index. */
static bool
look_at_node(Link *link, RedisEndpoint *address, uint32 *serial)
{
	int			node = link - links;
	bool		known;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	link->nodes_serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	known = node < fence_shared->nnodes;
	if (known)
	{
		*address = fence_shared->nodes[node].address;
		*serial = fence_shared->nodes[node].serial;
	}
	LWLockRelease(fence_shared->lock);
	return known;
}

bool
link_check(Link *link)
{
	RedisEndpoint address;
	uint32		serial;
	bool		changed = link->nodes_serial != pg_atomic_read_u32(&fence_shared->nodes_serial) &&
		(!look_at_node(link, &address, &serial) || serial != link->node_serial);

	if (changed)
		link->connect_next = 0;
	if (link->connection && redis_error(link->connection))
		link_hang_up(link, redis_error(link->connection));
	else if (changed)
		link_hang_up(link, "the address of Redis changed");
	return link->connection != NULL;
}

bool
link_connect(Link *link, int64 deadline, int64 pause, int times)
{
	RedisEndpoint address;
	LibraryCall call = {.deadline = deadline};
	int64		begun = fence_clock();
	int64		now;

	link->connect_next = begun + pause; /* set it now, because an interrupt may raise */
	link->proven = false;
	if (!look_at_node(link, &address, &link->node_serial) || address.host[0] == '\0')
		link_note("the keeper knows no Redis yet");
	else if (!library_open(&call, &address))
		link_note(call.error);
	link->connection = call.conn;
	now = fence_clock();
	link->connect_next = now + pause + times * (now - begun);
	link_changes++;
	return link->connection != NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Calls
 * -----------------------------------------------------------------------------------------------------------------
 */

bool
link_fits(const Link *link, const Message *message)
{
	return resp_has_room(&link->draft->ends, message->len) && link->draft->ends.strings + message->strings <= LINK_WORDS &&
		(link->draft_epoch == message->epoch || !link_has_draft(link));
}

void
link_add(Link *link, const Message *message)
{
	link->draft_epoch = message->epoch;
	resp_strings(&link->draft->ends, message->strings, message->bytes, message->len);
}

void
link_expect(Link *link, Expected expected)
{
	Assert(link_room(link) > 0);
	*link_expected(link, link->next++) = expected;
}

void
link_send(Link *link)
{
	if (!link_has_draft(link))
		return;
	link_expected(link, link->next - 1)->last = true;
	link->sent = link->next;
	(void) calls_send_write(link->connection, link->draft_epoch, link->draft, link->calls_sent++);
	write_call_clear(link->draft);
}

/* Queues the draft, and expects the reply to the next call. Returns the number of that call. */
static uint32
expect_call(Link *link, Expected expected)
{
	link_send(link);
	expected.last = true;
	link_expect(link, expected);
	link->sent = link->next;
	return link->calls_sent++;
}

void
link_expect_command(Link *link, Expected expected)
{
	expected.unnamed = true;
	(void) expect_call(link, expected);
}

void
link_send_message(Link *link, const Message *message, Expected expected)
{
	uint32		call = expect_call(link, expected);

	(void) calls_send_message(link->connection, message, call);
}

bool
link_flush(Link *link)
{
	if (link->connection == NULL)
		return false;
	link_send(link);
	if (!redis_flush(link->connection))
		link_hang_up(link, redis_error(link->connection));
	return link->connection != NULL;
}
