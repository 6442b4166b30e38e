/*
 * load.c
 *	  Load generator: the same loop for every variant that is compared, so that only the variant differs.
 *
 * A transaction is a list of steps, each one message to PostgreSQL (a prepared statement) or to Redis, one after the
 * other as a service would do it. A few threads serve many clients with poll(). Latencies go into a histogram; the
 * processor time of the backends, of Redis, of the courier and of this program is read at both ends of the measured time. Prints one
 * line of JSON.
 *
 * Never: formats, allocates or writes anything in the measured loop that the variants do not need.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>
#include <libpq-fe.h>

#include "clock.h"

#define MAX_STEPS 8
#define MAX_WORDS 32
#define MAX_PARAMS 4
#define MAX_BESIDE 1000
#define MAX_TOKEN 64
#define BUCKETS_PER_OCTAVE 64
#define BUCKETS (40 * BUCKETS_PER_OCTAVE)

typedef enum
{
	STEP_SQL, STEP_REDIS
} StepKind;

/*
 * sql: $1 row, $2 payload, $3 version. redis: words; in any word %i is the row, %0 to %9 the row that many above it, %v the
 * version, %s the stamp, %p the payload, %_ a blank; a word | separates commands that are sent together. What stands behind a word || is sent
 * once, after a pipeline of the rest.
 */
typedef struct
{
	StepKind	kind;
	const char *text;
	char		name[12];		/* of the prepared statement */
	int			nparams;
	int			nwords;
	char	   *words[MAX_WORDS];
	int			nrepeated;		/* words that stand before || */
	int			ncommands;		/* in them */
	int			nlast;			/* commands behind || */
} Step;

typedef struct
{
	PGconn	   *pg;
	redisContext *redis;
	int			step;
	int			awaited;		/* replies of Redis still to come for this step */
	char		token[MAX_TOKEN];	/* of the first of them, with the blank behind it */
	size_t		token_length;	/* 0: none has come */
	uint64_t	begun;
	uint64_t	drawn;			/* row of this transaction, or the first of a pipeline */
	uint64_t	row;
	volatile long done;
	int			number;
	char		row_text[24];
	char		version[24];
	char		stamp[48];
} Client;

typedef struct
{
	pthread_t	thread;
	Client	   *clients;
	int			nclients;
	uint64_t	random;
	uint64_t	count;
	uint64_t	failed;
	uint64_t	histogram[BUCKETS];
} Worker;

static Step steps[MAX_STEPS];
static int	nsteps;
static const char *pg_conninfo;
static const char *redis_address;
static int	nclients = 1;
static int	nthreads = 1;
static int	pipeline = 1;
static bool hits;				/* what Redis answers are strong hits, see check_token() */
static uint64_t rows = 1;
static uint64_t first_row = 1;
static double warmup = 0.5;
static double seconds = 2;
static long transactions = 0;	/* of each client; 0: by time */
static const char *initial;		/* SQL that every client runs once before anything is measured */
static Step beside;				/* for each transaction this too, on one connection of its own that nobody waits for */
static int	redis_pid;
static int	courier_pid;
static size_t payload_size = 100;
static char *payload;

static bool needs_stamp;			/* some step has %s: then %v rises from transaction to transaction */
static uint64_t first_version;

static volatile long behind;		/* transactions whose step beside is still to be done */
static volatile bool measuring;
static volatile bool stopping;
static pthread_barrier_t connected;

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "load: %s: %s\n", what, why);
	exit(1);
}

/* Nanoseconds a process has been on a processor; 0 if unknown. */
static uint64_t
process_ns(int pid)
{
	char		path[64];
	unsigned long long ns = 0;
	FILE	   *f;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);
	f = fopen(path, "r");
	if (f == NULL)
		return 0;
	if (fscanf(f, "%llu", &ns) != 1)
		ns = 0;
	fclose(f);
	return ns;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Connecting
 * -----------------------------------------------------------------------------------------------------------------
 */

static redisContext *
connect_redis(void)
{
	const char *colon = strrchr(redis_address, ':');
	redisContext *c;

	if (redis_address[0] == '/')
		c = redisConnectUnix(redis_address);
	else
	{
		char	   *host = strndup(redis_address, colon - redis_address);

		c = redisConnect(host, atoi(colon + 1));
		free(host);
	}
	if (c == NULL || c->err)
		die("redis", c ? c->errstr : "out of memory");
	return c;
}

static void
connect_client(Client *client)
{
	for (int i = 0; i < nsteps; i++)
	{
		PGresult   *result;

		if (steps[i].kind == STEP_REDIS)
		{
			if (client->redis == NULL)
				client->redis = connect_redis();
			continue;
		}
		if (client->pg == NULL)
		{
			client->pg = PQconnectdb(pg_conninfo);
			if (PQstatus(client->pg) != CONNECTION_OK)
				die("postgres", PQerrorMessage(client->pg));
		}
		if (initial && i == 0)
			PQclear(PQexec(client->pg, initial));
		result = PQprepare(client->pg, steps[i].name, steps[i].text, 0, NULL);
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die(steps[i].text, PQerrorMessage(client->pg));
		PQclear(result);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Steps
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Returns the payload with another beginning than before, because an UPDATE that changes nothing would cost PostgreSQL less. */
static const char *
other_payload(void)
{
	static _Thread_local char *text = NULL;
	static _Thread_local uint32_t number = 0;

	if (text == NULL)
		text = strdup(payload);
	number++;
	for (int i = 0; i < 8 && text[i] != '\0'; i++)
		text[i] = 'a' + (number >> 4 * i) % 16;
	return text;
}

static void
send_sql(Client *client, const Step *step)
{
	const char *values[MAX_PARAMS] = {client->row_text, other_payload(), client->version, NULL};

	if (!PQsendQueryPrepared(client->pg, step->name, step->nparams, values, NULL, NULL, 0) || PQflush(client->pg) != 0)
		die(step->text, PQerrorMessage(client->pg));
}

/* Puts row, version, stamp and payload into a word. */
static size_t
fill_word(const Client *client, const char *word, char *out)
{
	char	   *p = out;

	for (; *word; word++)
	{
		const char *s;

		if (*word != '%')
		{
			*p++ = *word;
			continue;
		}
		word++;
		if (*word == '_' || (*word >= '0' && *word <= '9'))
		{
			p += *word == '_' ? sprintf(p, " ") : sprintf(p, "%llu", (unsigned long long) client->row + *word - '0');
			continue;
		}
		s = *word == 'i' ? client->row_text : *word == 'v' ? client->version : *word == 's' ? client->stamp : payload;
		p = stpcpy(p, s);
	}
	return p - out;
}

static uint64_t
next_random(Worker *worker)
{
	worker->random ^= worker->random << 13;
	worker->random ^= worker->random >> 7;
	worker->random ^= worker->random << 17;
	return worker->random;
}

static void
set_row(Client *client, uint64_t row)
{
	client->row = row;
	snprintf(client->row_text, sizeof(client->row_text), "%llu", (unsigned long long) row);
}

/* The commands in words[from .. to), for this row. */
static void
append_commands(Client *client, const Step *step, int from, int to)
{
	static __thread char *buffer = NULL;
	const char *argv[MAX_WORDS];
	size_t		argvlen[MAX_WORDS];
	char	   *p;

	if (buffer == NULL)
		buffer = malloc(MAX_WORDS * 256 + payload_size * 2);
	p = buffer;
	for (int i = from, argc = 0; i < to; i++)
	{
		if (strcmp(step->words[i], "|") != 0)
		{
			argv[argc] = p;
			argvlen[argc] = fill_word(client, step->words[i], p);
			p += argvlen[argc++];
			if (i + 1 < to)
				continue;
		}
		redisAppendCommandArgv(client->redis, argc, argv, argvlen);
		argc = 0;
	}
}

/* So many messages at once: for this row and the ones after it, in every step alike; and what is sent once, for the last of them. */
static void
send_redis(Client *client, const Step *step, int count)
{
	int			done = 0;

	set_row(client, client->drawn);
	for (int n = 0; n < count; n++)
	{
		if (n > 0)
			set_row(client, first_row + (client->row - first_row + 1) % rows);
		append_commands(client, step, 0, step->nrepeated);
	}
	append_commands(client, step, step->nrepeated, step->nwords);
	client->awaited = count * step->ncommands + step->nlast;
	client->token_length = 0;
	while (!done)
		if (redisBufferWrite(client->redis, &done) != REDIS_OK)
			die("redis", client->redis->errstr);
}

static void
send_step(Client *client)
{
	const Step *step = &steps[client->step];

	if (step->kind == STEP_SQL)
		send_sql(client, step);
	else
		send_redis(client, step, pipeline);
}

/* True when the step's answer is complete. */
static bool
receive_sql(Worker *worker, Client *client)
{
	if (!PQconsumeInput(client->pg))
		die("postgres", PQerrorMessage(client->pg));
	while (!PQisBusy(client->pg))
	{
		PGresult   *result = PQgetResult(client->pg);
		ExecStatusType status;

		if (result == NULL)
			return true;
		status = PQresultStatus(result);
		if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
		{
			const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

			/* 40001 and 40P01 are part of a database's life; anything else is a mistake of the benchmark */
			if (state == NULL || strncmp(state, "40", 2) != 0)
				die("postgres", PQresultErrorMessage(result));
			worker->failed++;
		}
		PQclear(result);
	}
	return false;
}

/*
 * Every record and every permit that answers what was sent together begins with one token and a blank: else some was no hit. A GET alone
 * brings no permit; it is looked at all the same, so that the load generator works as much for each variant.
 */
static void
check_token(Client *client, const redisReply *reply)
{
	const char *blank;

	for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
		check_token(client, reply->element[i]);
	if (reply->type == REDIS_REPLY_NIL)
		die("no hit", "there is no fence");
	if (reply->type != REDIS_REPLY_STRING)
		return;
	if (client->token_length == 0)
	{
		blank = memchr(reply->str, ' ', reply->len < MAX_TOKEN ? reply->len : MAX_TOKEN);
		if (blank == NULL)
			die("no hit", reply->str);
		client->token_length = (size_t) (blank + 1 - reply->str);
		memcpy(client->token, reply->str, client->token_length);
	}
	else if (reply->len < client->token_length || memcmp(reply->str, client->token, client->token_length) != 0)
		die("no hit, of another token", reply->str);
}

static bool
receive_redis(Client *client)
{
	redisReply *reply;

	if (redisBufferRead(client->redis) != REDIS_OK)
		die("redis", client->redis->errstr);
	while (client->awaited > 0)
	{
		if (redisReaderGetReply(client->redis->reader, (void **) &reply) != REDIS_OK)
			die("redis", client->redis->errstr);
		if (reply == NULL)
			return false;
		if (reply->type == REDIS_REPLY_ERROR)
			die("redis", reply->str);
		if (hits)
			check_token(client, reply);
		if (pipeline == 1 && reply->type == REDIS_REPLY_INTEGER)
			snprintf(client->version, sizeof(client->version), "%lld", reply->integer);
		freeReplyObject(reply);
		client->awaited--;
	}
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Workers
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
record(Worker *worker, uint64_t ns)
{
	int			bucket = (int) (log2((double) (ns ? ns : 1)) * BUCKETS_PER_OCTAVE);

	worker->histogram[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
	worker->count += pipeline;
}

static void
sleep_seconds(double s)
{
	struct timespec t = {(time_t) s, (long) ((s - (time_t) s) * 1e9)};

	nanosleep(&t, NULL);
}

static void
set_stamp(Client *client)
{
	snprintf(client->stamp, sizeof(client->stamp), "%d.%ld", client->number, client->done);
	snprintf(client->version, sizeof(client->version), "%lld", (long long) (first_version + client->done));
}

static void
begin_transaction(Worker *worker, Client *client)
{
	client->step = 0;
	client->drawn = first_row + next_random(worker) % rows;
	set_row(client, client->drawn);
	client->begun = now_ns(CLOCK_MONOTONIC);
	if (needs_stamp)
		set_stamp(client);
	send_step(client);
}

/* The step's answer has come: the next one, or the next transaction. False: this client has done its share. */
static bool
advance(Worker *worker, Client *client)
{
	if (++client->step < nsteps)
	{
		send_step(client);
		return true;
	}
	client->done++;
	if (measuring)
		record(worker, now_ns(CLOCK_MONOTONIC) - client->begun);
	if (stopping || (transactions > 0 && client->done >= transactions))
		return false;
	/* no faster than what is beside: else the measured time would have a part of it only */
	while (behind > MAX_BESIDE)
		sleep_seconds(0.0002);
	begin_transaction(worker, client);
	return true;
}

static int
socket_of(const Client *client)
{
	return steps[client->step].kind == STEP_SQL ? PQsocket(client->pg) : client->redis->fd;
}

static void *
work(void *arg)
{
	Worker	   *worker = arg;
	struct pollfd *fds = calloc(worker->nclients, sizeof(struct pollfd));
	int			active = worker->nclients;

	for (int i = 0; i < worker->nclients; i++)
		connect_client(&worker->clients[i]);
	pthread_barrier_wait(&connected);	/* all are connected */
	pthread_barrier_wait(&connected);	/* the first sample is taken */
	for (int i = 0; i < worker->nclients; i++)
	{
		begin_transaction(worker, &worker->clients[i]);
		fds[i] = (struct pollfd) {.fd = socket_of(&worker->clients[i]), .events = POLLIN};
	}
	while (active > 0)
	{
		if (poll(fds, worker->nclients, -1) < 0 && errno != EINTR)
			die("poll", strerror(errno));
		for (int i = 0; i < worker->nclients; i++)
		{
			Client	   *client = &worker->clients[i];

			if (fds[i].fd < 0 || fds[i].revents == 0)
				continue;
			if (!(steps[client->step].kind == STEP_SQL ? receive_sql(worker, client) : receive_redis(client)))
				continue;
			if (advance(worker, client))
				fds[i].fd = socket_of(client);
			else
			{
				fds[i].fd = -1;
				active--;
			}
		}
	}
	free(fds);
	return NULL;
}

/* Does the step beside as often as the clients have done a transaction, gathered for half a millisecond or while it waits. */
static void *
work_beside(void *arg)
{
	const Client *clients = arg;
	Worker		worker = {.random = 88172645463325252ULL};
	Client		client = {.redis = connect_redis(), .number = getpid() * 1000 + nclients};
	long		done = 0;

	while (!stopping)
	{
		long		count = -done;

		for (int i = 0; i < nclients; i++)
			count += clients[i].done;
		behind = count;
		if (count == 0)
		{
			sleep_seconds(0.0005);
			continue;
		}
		if (count > MAX_BESIDE)
			count = MAX_BESIDE;
		client.drawn = first_row + next_random(&worker) % rows;
		set_stamp(&client);
		send_redis(&client, &beside, count);
		while (!receive_redis(&client))
			;
		client.done++;
		done += count;
	}
	behind = 0;
	redisFree(client.redis);
	return NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Arguments and results
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
parse_step(const char *text, Step *step)
{
	if (strncmp(text, "sql:", 4) == 0)
	{
		step->kind = STEP_SQL;
		step->text = text + 4;
		snprintf(step->name, sizeof(step->name), "s%d", (int) (step - steps));
		for (const char *p = step->text; *p; p++)
			if (*p == '$' && p[1] - '0' > step->nparams)
				step->nparams = p[1] - '0';
	}
	else if (strncmp(text, "redis:", 6) == 0)
	{
		char	   *copy = strdup(text + 6);

		int		   *ncommands = &step->ncommands;

		step->kind = STEP_REDIS;
		step->text = text;
		*ncommands = 1;
		for (char *w = strtok(copy, " "); w && step->nwords < MAX_WORDS; w = strtok(NULL, " "))
		{
			if (strcmp(w, "||") == 0)
			{
				step->nrepeated = step->nwords;
				ncommands = &step->nlast;
				*ncommands = 1;
				continue;
			}
			step->words[step->nwords++] = w;
			*ncommands += strcmp(w, "|") == 0;
		}
		if (step->nlast == 0)
			step->nrepeated = step->nwords;
	}
	else
		die(text, "a step begins with sql: or redis:");
}

static void
add_step(const char *text)
{
	if (nsteps == MAX_STEPS)
		die(text, "too many steps");
	parse_step(text, &steps[nsteps]);
	needs_stamp |= steps[nsteps].kind == STEP_REDIS && strstr(text, "%s") != NULL;
	nsteps++;
}

static void
parse_arguments(int argc, char **argv)
{
	static const struct option options[] = {
		{"pg", required_argument, NULL, 'g'}, {"redis", required_argument, NULL, 'r'},
		{"step", required_argument, NULL, 's'}, {"clients", required_argument, NULL, 'c'},
		{"threads", required_argument, NULL, 'j'}, {"pipeline", required_argument, NULL, 'P'},
		{"rows", required_argument, NULL, 'n'}, {"first-row", required_argument, NULL, 'f'},
		{"warmup", required_argument, NULL, 'w'}, {"seconds", required_argument, NULL, 'T'},
		{"transactions", required_argument, NULL, 't'}, {"redis-pid", required_argument, NULL, 'p'},
		{"payload", required_argument, NULL, 'b'}, {"initial", required_argument, NULL, 'i'},
		{"beside", required_argument, NULL, 'a'}, {"courier-pid", required_argument, NULL, 'q'},
		{"hits", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}
	};
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c)
		{
			case 'g': pg_conninfo = optarg; break;
			case 'r': redis_address = optarg; break;
			case 's': add_step(optarg); break;
			case 'c': nclients = atoi(optarg); break;
			case 'j': nthreads = atoi(optarg); break;
			case 'P': pipeline = atoi(optarg); break;
			case 'n': rows = strtoull(optarg, NULL, 10); break;
			case 'f': first_row = strtoull(optarg, NULL, 10); break;
			case 'w': warmup = atof(optarg); break;
			case 'T': seconds = atof(optarg); break;
			case 't': transactions = atol(optarg); break;
			case 'p': redis_pid = atoi(optarg); break;
			case 'q': courier_pid = atoi(optarg); break;
			case 'i': initial = optarg; break;
			case 'a': parse_step(optarg, &beside); break;
			case 'h': hits = true; break;
			case 'b': payload_size = strtoull(optarg, NULL, 10); break;
			default: exit(2);
		}
	if (nsteps == 0 || rows == 0 || nclients < 1)
		die("arguments", "at least one --step, row and client are needed");
	if (nthreads > nclients)
		nthreads = nclients;
}

typedef struct
{
	uint64_t	clock;
	uint64_t	own;
	uint64_t	redis;
	uint64_t	courier;
	uint64_t	backends;
} Sample;

static Sample
sample(const Client *clients)
{
	Sample		s = {0};

	s.clock = now_ns(CLOCK_MONOTONIC);
	s.own = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	s.redis = redis_pid ? process_ns(redis_pid) : 0;
	s.courier = courier_pid ? process_ns(courier_pid) : 0;
	for (int i = 0; i < nclients; i++)
		if (clients[i].pg)
			s.backends += process_ns(PQbackendPID(clients[i].pg));
	return s;
}

static double
quantile(const uint64_t *histogram, uint64_t total, double q)
{
	uint64_t	seen = 0;

	for (int i = 0; i < BUCKETS; i++)
	{
		seen += histogram[i];
		if (seen > total * q)
			return exp2((i + 0.5) / BUCKETS_PER_OCTAVE) / 1000;
	}
	return 0;
}

static void
print_results(Worker *workers, const Client *first, Sample a, Sample b)
{
	static uint64_t histogram[BUCKETS];
	uint64_t	count = 0,
				failed = 0,
				timed = 0;
	double		elapsed = (b.clock - a.clock) / 1e9;

	for (int w = 0; w < nthreads; w++)
	{
		count += workers[w].count;
		failed += workers[w].failed;
		for (int i = 0; i < BUCKETS; i++)
		{
			histogram[i] += workers[w].histogram[i];
			timed += workers[w].histogram[i];
		}
	}
	printf("{\"count\": %llu, \"failed\": %llu, \"seconds\": %.4f, \"tps\": %.4f, \"p50\": %.1f, \"p99\": %.1f, "
		   "\"p999\": %.1f, \"cpu_backends\": %.3f, \"cpu_redis\": %.3f, \"cpu_courier\": %.3f, \"cpu_load\": %.3f, \"pid\": %d}\n",
		   (unsigned long long) count, (unsigned long long) failed, elapsed, count / elapsed,
		   quantile(histogram, timed, 0.5), quantile(histogram, timed, 0.99), quantile(histogram, timed, 0.999),
		   (b.backends - a.backends) / 1e3 / (count ? count : 1), (b.redis - a.redis) / 1e3 / (count ? count : 1),
		   (b.courier - a.courier) / 1e3 / (count ? count : 1),
		   (b.own - a.own) / 1e3 / (count ? count : 1), first->pg ? PQbackendPID(first->pg) : 0);
}

int
main(int argc, char **argv)
{
	Client	   *clients;
	Worker	   *workers;
	Sample		before,
				after;
	pthread_t	beside_thread;
	int			next = 0;

	parse_arguments(argc, argv);
	first_version = now_ns(CLOCK_REALTIME) / 1000;
	payload = malloc(payload_size + 1);
	memset(payload, 'x', payload_size);
	payload[payload_size] = '\0';
	clients = calloc(nclients, sizeof(Client));
	workers = calloc(nthreads, sizeof(Worker));
	for (int i = 0; i < nclients; i++)
		clients[i].number = getpid() * 1000 + i;
	pthread_barrier_init(&connected, NULL, nthreads + 1);
	for (int w = 0; w < nthreads; w++)
	{
		workers[w].clients = clients + next;
		workers[w].nclients = (nclients - next) / (nthreads - w);
		workers[w].random = 88172645463325252ULL ^ ((uint64_t) getpid() << 32) ^ (uint64_t) (w + 1) * 2654435761u;
		next += workers[w].nclients;
		pthread_create(&workers[w].thread, NULL, work, &workers[w]);
	}
	pthread_barrier_wait(&connected);
	if (beside.text)
		pthread_create(&beside_thread, NULL, work_beside, clients);
	measuring = transactions > 0;
	before = sample(clients);
	pthread_barrier_wait(&connected);
	if (transactions == 0)
	{
		/* the first transaction of a session may take long: it loads libraries, it connects */
		for (int i = 0; i < nclients; i++)
			while (clients[i].done == 0)
				sleep_seconds(0.001);
		sleep_seconds(warmup);
		before = sample(clients);
		measuring = true;
		sleep_seconds(seconds);
		measuring = false;
		after = sample(clients);
		stopping = true;
	}
	for (int w = 0; w < nthreads; w++)
		pthread_join(workers[w].thread, NULL);
	if (transactions > 0)
		after = sample(clients);
	stopping = true;
	if (beside.text)
		pthread_join(beside_thread, NULL);
	print_results(workers, clients, before, after);
	return 0;
}
