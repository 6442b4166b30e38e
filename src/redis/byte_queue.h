/*
 * redis/byte_queue.h
 *	  Bytes in order of arrival: those that a connection has to send, and those that it has received.
 *
 * The queues are our own: hiredis moves the whole rest of its buffer each time it consumes a little, which takes quadratic
 * time when much is in flight. They use malloc, because a connection outlives transactions, and COMMIT and ABORT add to
 * them. Nothing here raises.
 */
#ifndef FENCE_REDIS_BYTE_QUEUE_H
#define FENCE_REDIS_BYTE_QUEUE_H

/* The bytes data[start .. end). All zeros: an empty queue. */
typedef struct ByteQueue
{
	char	   *data;
	size_t		start;
	size_t		end;
	size_t		size;
} ByteQueue;

/* Returns the number of bytes in the queue. */
static inline size_t
queue_length(const ByteQueue *queue)
{
	return queue->end - queue->start;
}

/*
 * Makes room for len bytes at data + end, where the caller then writes them and raises `end`. Returns false if there is no
 * memory.
 */
extern bool queue_reserve(ByteQueue *queue, size_t len);

/* Removes the first len bytes. */
extern void queue_drop(ByteQueue *queue, size_t len);

/* Removes all bytes, and frees the memory. */
extern void queue_free(ByteQueue *queue);

#endif
