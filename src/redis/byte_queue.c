/*
 * redis/byte_queue.c
 *	  Bytes in order of arrival; see byte_queue.h.
 */
#include "postgres.h"

#include "redis/byte_queue.h"

#define LEAST_BYTES (16 * 1024)		/* size of a queue that has any memory */
#define KEEP_BYTES (1024 * 1024)	/* an empty queue larger than this is freed */

void
queue_free(ByteQueue *queue)
{
	free(queue->data);
	memset(queue, 0, sizeof(*queue));
}

bool
queue_reserve(ByteQueue *queue, size_t len)
{
	size_t		used = queue_length(queue);
	size_t		size = Max(queue->size, LEAST_BYTES);
	char	   *data;

	if (queue->size - queue->end >= len)
		return true;
	/*
	 * Move the bytes only if at least as many have left the queue since the last move. So moving costs constant time
	 * per byte.
	 */
	if (queue->start >= used && queue->size - used >= len)
	{
		if (used > 0)
			memmove(queue->data, queue->data + queue->start, used);
		queue->start = 0;
		queue->end = used;
		return true;
	}
	while (size - queue->end < len)
		size *= 2;
	if ((data = realloc(queue->data, size)) == NULL)
		return false;
	queue->data = data;
	queue->size = size;
	return true;
}

void
queue_drop(ByteQueue *queue, size_t len)
{
	queue->start += len;
	if (queue->start < queue->end)
		return;
	queue->start = queue->end = 0;
	if (queue->size > KEEP_BYTES)
		queue_free(queue);
}
